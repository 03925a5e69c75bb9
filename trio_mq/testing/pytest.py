"""The pytest plugin: fixtures that give a test a RocketMQ broker, a topic, a group and a producer.

In: options, the marker ``rocketmq`` and what runs a test (pytest-trio, anyio, pytest-asyncio, nothing). Out: the
fixtures ``rocketmq_broker``, ``rocketmq_topic``, ``rocketmq_group`` and ``rocketmq_producer``. Loaded by its entry
point in every pytest run where trio-mq is installed, so loading imports nothing but pytest: the rest comes with the
first fixture.

All public fixtures are plain functions. What has to be opened by a test's own event loop is opened by a private async
fixture, which the public one asks for by name: pytest-trio gives a promise for it then, which tests and other fixtures
take like a value, and anyio's plugin gives the value. Guide: docs/howto/pytest.md.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from trio_mq import blocking
    from trio_mq.client.producer import Producer
    from trio_mq.testing.broker import RocketMQBroker
    from trio_mq.testing.process import BrokerPool

MODES = ("auto", "subprocess", "inprocess")
#: Queues of `rocketmq_topic`: as many as a first send makes.
QUEUES = 4
#: Fixtures that put a test of pytest-trio into virtual time.
MOCK_CLOCKS = ("autojump_clock", "mock_clock")
#: Most of a broker's log that is shown with a test that failed.
SHOWN_BYTES = 8192

_log_key: pytest.StashKey[tuple[Path, int]] = pytest.StashKey()


# -- options


def pytest_addoption(parser: pytest.Parser) -> None:
    """The mode and the settings of brokers."""
    group = parser.getgroup("rocketmq", "a RocketMQ broker for tests (trio-mq)")
    group.addoption(
        "--rocketmq-mode",
        choices=MODES,
        default=None,
        help="where brokers run: in a process of their own, in that of a Trio test, or (auto) in that of tests "
        "with a mock clock only",
    )
    parser.addini("rocketmq_mode", "as --rocketmq-mode, which wins over it", default="auto")
    parser.addini("rocketmq_settings", "settings of brokers, KEY=VALUE lines", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and the fixture that pytest-asyncio alone can run."""
    config.addinivalue_line(
        "markers",
        "rocketmq(mode='inprocess', settings={...}, queues=4): the broker that a test gets, and its topic's queues",
    )
    asyncio_plugin = config.pluginmanager.get_plugin("asyncio")
    if hasattr(asyncio_plugin, "fixture"):
        from trio_mq.testing import asyncio_fixtures

        fixtures = asyncio_fixtures.made_by(asyncio_plugin)
        config.pluginmanager.register(fixtures, "trio_mq.testing.asyncio_fixtures")


class Plan(NamedTuple):
    """What one test gets. `runner` is ``trio`` (pytest-trio), ``anyio``, ``asyncio`` (pytest-asyncio) or ``plain``."""

    mode: str
    runner: str
    settings: dict[str, str]
    queues: int


_plan_key: pytest.StashKey[Plan] = pytest.StashKey()


def plan_of(request: pytest.FixtureRequest) -> Plan:
    """What the test of a fixture gets; a failure for what does not go together.

    Decided once, before the test runs: its function is another one then.
    """
    stash = request.node.stash
    if _plan_key not in stash:
        stash[_plan_key] = _plan(request)
    plan: Plan = stash[_plan_key]
    return plan


def _plan(request: pytest.FixtureRequest) -> Plan:
    """From options, markers and the kind of the test."""
    config, settings, marked = request.config, {}, {}
    for line in config.getini("rocketmq_settings") or ():
        key, _, value = line.partition("=")
        settings[key.strip()] = value.strip()
    for mark in reversed(list(request.node.iter_markers("rocketmq"))):
        unknown = set(mark.kwargs) - {"mode", "settings", "queues"}
        if mark.args or unknown or mark.kwargs.get("mode", "auto") not in MODES:
            _refuse(
                f"{request.node.nodeid}: {mark} is wrong; rocketmq takes mode={' | '.join(MODES)}, "
                f"settings={{...}}, queues=number"
            )
        marked.update(mark.kwargs)
        settings.update(_texts(mark.kwargs.get("settings", {})))
    runner = _runner(request)
    preferred = config.getoption("rocketmq_mode", None) or config.getini("rocketmq_mode")
    mode = _mode(request, runner, marked.get("mode"), preferred)
    return Plan(mode, runner, settings, marked.get("queues", QUEUES))


def _refuse(text: str) -> NoReturn:
    pytest.fail(text, pytrace=False)


def _texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as a file has them."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in settings.items()
    }


def _runner(request: pytest.FixtureRequest) -> str:
    """What runs the test: each of the plugins marks its tests, also those that it takes unasked."""
    node = request.node
    test = getattr(node, "function", None)
    test = getattr(getattr(test, "hypothesis", None), "inner_test", test)
    if not inspect.iscoroutinefunction(test):
        return "plain"
    if node.get_closest_marker("trio"):
        return "trio"
    if "anyio_backend" in request.fixturenames:
        return "anyio"
    if node.get_closest_marker("asyncio"):
        return "asyncio"
    _refuse(
        f"{node.nodeid} is async and nothing runs it: install pytest-trio, anyio or pytest-asyncio, and mark it "
        f"with trio, anyio or asyncio"
    )


def _mode(request: pytest.FixtureRequest, runner: str, marked: str | None, preferred: str) -> str:
    """A marker is an order; an option is a wish, which tests that cannot fulfil it do not see."""
    on_trio, is_virtual = _time(request, runner)
    if marked == "inprocess" and not on_trio:
        _refuse(
            f"{request.node.nodeid}: mode 'inprocess' is for tests on Trio (pytest-trio, or anyio with its Trio "
            f"backend); leave it out, or take 'subprocess'"
        )
    if marked == "subprocess" and is_virtual:
        _refuse(
            f"{request.node.nodeid}: a broker in another process does not live in the virtual time of this test; "
            f"leave mode 'subprocess' out, or the mock clock"
        )
    if is_virtual or (on_trio and "inprocess" in (marked, marked or preferred)):
        return "inprocess"
    return "subprocess"


def _time(request: pytest.FixtureRequest, runner: str) -> tuple[bool, bool]:
    """Whether the test runs on Trio, and whether with a mock clock."""
    if runner == "trio":
        return True, any(name in request.fixturenames for name in MOCK_CLOCKS)
    if runner == "anyio":
        backend = request.getfixturevalue("anyio_backend")
        name, options = (backend, {}) if isinstance(backend, str) else backend
        return name == "trio", name == "trio" and options.get("clock") is not None
    return False, False


# -- fixtures


@pytest.fixture
def rocketmq_broker(request: pytest.FixtureRequest) -> RocketMQBroker:
    """A broker and its name server: `.nameserver`, `.address` (both ``host:port``), `.faults`, `.mode`."""
    mode = plan_of(request).mode
    broker: RocketMQBroker = request.getfixturevalue(f"_rocketmq_{mode}")
    return broker


@pytest.fixture
def rocketmq_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that nobody else has; it exists, with 4 queues unless the marker says another number."""
    plan = plan_of(request)
    topic: str = request.getfixturevalue(f"_rocketmq_{plan.mode}_topic")
    return topic


@pytest.fixture
def rocketmq_group(request: pytest.FixtureRequest) -> str:
    """The name of a group that nobody else has; a client makes it."""
    from trio_mq.testing.broker import fresh

    group = fresh("group")
    if plan_of(request).mode == "subprocess":
        request.getfixturevalue("_rocketmq_subprocess")
        processes: BrokerPool = request.getfixturevalue("_rocketmq_processes")
        processes.get(plan_of(request).settings).will_forget(group)
    return group


@pytest.fixture
def rocketmq_producer(request: pytest.FixtureRequest) -> Any:
    """An open producer: trio_mq.Producer in async tests, trio_mq.blocking.Producer in all others."""
    return request.getfixturevalue(f"_rocketmq_{plan_of(request).runner}_producer")


# -- a process of its own


@pytest.fixture(scope="session")
def _rocketmq_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerPool]:
    from trio_mq.testing.process import BrokerPool

    pool = BrokerPool(lambda: tmp_path_factory.mktemp("rocketmq"))
    yield pool
    pool.close()


@pytest.fixture
def _rocketmq_subprocess(
    request: pytest.FixtureRequest, _rocketmq_processes: BrokerPool
) -> Iterator[RocketMQBroker]:
    with _without_traceback():
        process = _rocketmq_processes.get(plan_of(request).settings)
    request.node.stash[_log_key] = process.log, process.log.stat().st_size
    yield process.broker
    with _without_traceback():
        process.check()
        process.reset()


@contextmanager
def _without_traceback() -> Iterator[None]:
    """What a broker says is all that helps when it does not start or has ended."""
    from trio_mq.errors import TrioMQError

    try:
        yield
    except TrioMQError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def _rocketmq_subprocess_topic(
    request: pytest.FixtureRequest,
    _rocketmq_subprocess: RocketMQBroker,
    _rocketmq_processes: BrokerPool,
) -> str:
    from trio_mq.testing.broker import fresh

    plan, name = plan_of(request), fresh("topic")
    _rocketmq_processes.get(plan.settings).create_topic(name, plan.queues)
    return name


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Show what the broker has logged during a test that failed."""
    report = (yield).get_result()
    found = item.stash.get(_log_key, None)
    if found is not None and report.failed:
        path, start = found
        with path.open("rb") as log:
            log.seek(max(start, path.stat().st_size - SHOWN_BYTES))
            text = log.read().decode("utf-8", "replace")
        if text:
            report.sections.append(("log of rocketmq_broker", text))


# -- in the process of a test on Trio


@pytest.fixture
async def _rocketmq_inprocess(request: pytest.FixtureRequest) -> AsyncIterator[RocketMQBroker]:
    from trio_mq.testing.inprocess import open_broker

    async with open_broker(plan_of(request).settings) as broker:
        yield broker


@pytest.fixture
async def _rocketmq_inprocess_topic(
    request: pytest.FixtureRequest, _rocketmq_inprocess: RocketMQBroker
) -> str:
    from trio_mq.testing.broker import fresh
    from trio_mq.testing.topics import create_topic

    name = fresh("topic")
    await create_topic(_rocketmq_inprocess.address, name, plan_of(request).queues)
    return name


# -- producers


@pytest.fixture
async def _rocketmq_trio_producer(rocketmq_broker: RocketMQBroker) -> AsyncIterator[Producer]:
    from trio_mq import Producer
    from trio_mq.testing.broker import fresh

    async with Producer(rocketmq_broker.nameserver, fresh("producer")) as producer:
        yield producer


@pytest.fixture
async def _rocketmq_anyio_producer(rocketmq_broker: RocketMQBroker) -> AsyncIterator[Producer]:
    from trio_mq import Producer
    from trio_mq.testing.broker import fresh

    async with Producer(rocketmq_broker.nameserver, fresh("producer")) as producer:
        yield producer


@pytest.fixture
def _rocketmq_plain_producer(rocketmq_broker: RocketMQBroker) -> Iterator[blocking.Producer]:
    from trio_mq import blocking
    from trio_mq.testing.broker import fresh

    with blocking.Producer(rocketmq_broker.nameserver, fresh("producer")) as producer:
        yield producer
