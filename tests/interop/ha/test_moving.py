"""Moving house: a slave of the other kind copies a running master, and takes its place by a restart.

Producers and consumers run all the time, as applications that try again. Nothing that was acknowledged is lost; copies
are counted by cause. The steps are those of ``docs/howto/move-to-apache.md``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.java_client import Acked, Java, Push, Received
from tests.interop.polling import wait_for
from tests.interop.servers import ApacheNameServer, Server, registered

from .conftest import Bench, MakeTopic
from .loads import Verdict, check, everything, load
from .pairs import MASTER, SLAVE, Pair, knows_topic, log_end, same_logs, set_role

QUEUES = 4


Houses = dict[str, Pair]


@pytest.fixture(scope="module")
def houses(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    shared_nameserver: ApacheNameServer,
) -> Iterator[Houses]:
    """Both pairs start together: an Apache slave needs a minute until it has the tables of its master."""
    bench = Bench(tmp_path_factory.mktemp("houses"), shared_nameserver)
    apache = request.config.getoption("--broker") == "apache"
    names = ["apache-apache"] if apache else ["trio-apache", "apache-trio"]
    pairs = {name: bench.pair(name, through_proxy=False) for name in names}
    try:
        for pair in pairs.values():
            pair.start()
        yield pairs
    finally:
        bench.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Both directions; with ``--broker apache`` from Apache to Apache."""
    if "kinds" in metafunc.fixturenames:
        apache = metafunc.config.getoption("--broker") == "apache"
        # The one whose slave is Apache's comes last: meanwhile it gets its tables.
        names = ["apache-apache"] if apache else ["apache-trio", "trio-apache"]
        metafunc.parametrize("kinds", names)


def test_moving_house_while_producers_run(
    houses: Houses, kinds: str, java: Java, topic: MakeTopic
) -> None:
    pair = houses[kinds]
    name, group = topic(pair), f"Mover_{pair.name}"
    running = load(java, pair.ns, name)
    consumer = java.push(pair.ns, group, (name, "*"), start="FIRST_OFFSET")
    wait_for(lambda: consumer.count() > 50, "the consumer works", timeout_s=60)
    # 1. The slave has the log and the tables.
    wait_for(lambda: knows_topic(pair.slave.address, name), "tables have come", timeout_s=80)
    pair.wait_caught_up()
    # 2. The old master ends; it gives its slave the rest of the log before.
    old, new = pair.master, pair.slave
    old.stop()
    assert log_end(new.address) > 0
    # 3. The slave starts again as the master.
    new.stop()
    set_role(new, MASTER)
    new.start()
    assert registered(pair.nameservers[0])[pair.name] == new.address
    # 4. Clients follow by the route.
    running.wait_more(200, timeout_s=60)
    acked, failed = running.stop()
    seen = finish(java, pair, name, acked, failed, consumer)
    assert seen.acked > 250
    comes_back_as_slave(pair, old, new)


def finish(
    java: Java, pair: Pair, name: str, acked: list[Acked], failed: list[str], consumer: Push
) -> Verdict:
    """The new master holds all, and the consumer got all; what came twice is explained."""
    stored = check(acked, failed, everything(java, pair.ns, name, pair.name))
    got: list[Received] = []

    def all_there() -> bool:
        got[:] = consumer.received()
        return len({(m.queue, m.queue_offset) for m in got}) >= stored.acked + stored.sent_twice

    wait_for(all_there, "the consumer has all", timeout_s=60)
    seen = check(acked, failed, got)
    # A consumer that stays keeps its place by itself: only what it was working on may come again.
    assert seen.read_twice <= 32 * QUEUES, f"{seen.read_twice} messages were read twice"
    print(
        f"{len(acked)} acknowledged, {len(failed)} sends failed, {seen.sent_twice} stored twice, "
        f"{seen.read_twice} read twice"
    )
    return seen


def comes_back_as_slave(pair: Pair, old: Server, new: Server) -> None:
    """The old master's log is the beginning of the new one's, so it may follow as a slave."""
    set_role(old, SLAVE)
    old.start()
    pair.master, pair.slave = new, old
    pair.wait_caught_up()
    same_logs(new.store, old.store, log_end(new.address))
