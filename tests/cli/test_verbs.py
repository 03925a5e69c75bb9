"""The table of verbs that talk to a cluster, and what it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.running import run
from trio_mq.cli import online, verbs
from trio_mq.errors import BrokerFailure, ConfigError, PeerRefused, PeerUnavailable


@pytest.mark.parametrize(
    ("words", "path", "rest"),
    [
        (["topic", "list", "--json"], "topic list", ["--json"]),
        (["send", "T", "x"], "send", ["T", "x"]),
        (["message", "get"], "message get", []),
    ],
)
def test_a_verb_is_found_by_its_words(words: list[str], path: str, rest: list[str]) -> None:
    found = verbs.find(words)
    assert found is not None
    assert (found[0].path, found[1]) == (path, rest)


def test_what_is_no_verb() -> None:
    for words in ([], ["topic"], ["list"], ["topic", "nonsense"], ["serve"]):
        assert verbs.find(words) is None


@pytest.mark.parametrize("verb", verbs.CLUSTER, ids=lambda verb: verb.path)
def test_every_verb_has_help_and_talks_to_a_name_server(verb: verbs.Verb) -> None:
    result = run(*verb.path.split(), "--help")
    assert result.code == 0
    for option in verb.table:
        assert option.name in result.out
    assert set(online.CONNECTION) <= set(verb.table)


def test_a_plain_line_loads_neither_typer_nor_rich_nor_a_client_before_it_is_known_to_be_good() -> (
    None
):
    script = (
        "import sys\n"
        "from trio_mq.cli.app import main\n"
        "sys.argv = ['trio-mq', 'topic', 'create', 'T', '--queues', 'x', '--nameserver', '127.0.0.1:1']\n"
        "from trio_mq.cli import verbs\n"
        "light = {'typer', 'click', 'rich', 'pydantic', 'cattrs', 'trio', 'anyio'} & sys.modules.keys()\n"
        "assert not light, light\n"
        "sys.argv = ['trio-mq', 'topic', 'list', '--timeout', '1', '--nameserver', '127.0.0.1:1']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as ended:\n"
        "    assert ended.code == 30, ended.code\n"
        "heavy = {'typer', 'click', 'rich', 'pydantic'} & sys.modules.keys()\n"
        "heavy |= {name for name in sys.modules if name.startswith(('trio_mq.broker', 'trio_mq.store'))}\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=60, stderr=subprocess.DEVNULL
    )


def test_a_plain_start_of_a_broker_loads_none_of_them() -> None:
    script = (
        "import sys\n"
        "from trio_mq.cli import serve\n"
        "serve.serve = lambda values: 0\n"
        "from trio_mq.cli.app import main\n"
        "sys.argv = ['trio-mq', 'serve']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as ended:\n"
        "    assert ended.code == 0\n"
        "ours = {'trio_mq.cli.verbs', 'trio_mq.cli.online', 'trio_mq.client'} & sys.modules.keys()\n"
        "assert not ours, ours\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_mistakes_are_explained_by_typer() -> None:
    result = run("topic", "create", "--nonsense")
    assert result.code == 2
    assert "No such option" in result.err


# -- options of the connection


def test_where_the_cluster_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(online.NAMESERVER_VARIABLE, raising=False)
    assert online.connection({})["nameserver"] == "127.0.0.1:9876"
    monkeypatch.setenv(online.NAMESERVER_VARIABLE, "10.0.0.1:1;10.0.0.2:1")
    assert online.connection({})["nameserver"] == "10.0.0.1:1;10.0.0.2:1"
    given = {"--nameserver": ["10.0.0.3:1", "10.0.0.4:1"], "--timeout": ["1.5"]}
    found = online.connection(given)
    assert (found["nameserver"], found["call_timeout_s"]) == ("10.0.0.3:1;10.0.0.4:1", 1.5)
    for text in ("0", "-1", "x", "nan", "inf"):
        with pytest.raises(ConfigError, match="no number of seconds"):
            online.connection({"--timeout": [text]})


def test_keys_come_from_the_environment() -> None:
    assert online.credentials({}) is None
    found = online.credentials({"TRIO_MQ_ACCESS_KEY": "a", "TRIO_MQ_SECRET_KEY": "s"})
    assert found is not None
    assert (found.access_key, found.secret_key, found.security_token) == ("a", "s", None)
    with pytest.raises(ConfigError, match="belong together"):
        online.credentials({"TRIO_MQ_ACCESS_KEY": "a"})


# -- brokers that do not answer


def test_brokers_that_do_not_answer_are_told_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    failures = [
        BrokerFailure("b1", "10.0.0.1:1", PeerUnavailable("10.0.0.1:1: cannot\nconnect")),
        BrokerFailure("b2", "10.0.0.2:1", PeerRefused(17, "no", address="10.0.0.2:1", what="X")),
    ]
    assert online.report_failures([]) == 0
    assert online.report_failures(failures) == 34
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "error: 10.0.0.1:1: cannot connect\nerror: 10.0.0.2:1 refused X with code 17: no\n",
    )
    assert online.failure_fields(failures) == [
        {
            "brokerName": "b1",
            "address": "10.0.0.1:1",
            "error": "10.0.0.1:1: cannot\nconnect",
            "code": None,
        },
        {
            "brokerName": "b2",
            "address": "10.0.0.2:1",
            "error": "10.0.0.2:1 refused X with code 17: no",
            "code": 17,
        },
    ]


# -- running


async def _ended() -> int:
    return 7


def test_the_exit_code_of_the_work_is_passed_on() -> None:
    assert online.run(_ended) == 7


@pytest.mark.parametrize("error", [ConfigError("ours"), PeerUnavailable("theirs")])
def test_an_error_of_the_work_ends_it(error: Exception) -> None:
    async def failing() -> int:
        raise error

    with pytest.raises(ExceptionGroup) as caught:
        online.run(failing)
    assert caught.value.exceptions == (error,)


def test_an_interrupt_in_the_work_is_one() -> None:
    async def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        online.run(interrupted)


def test_what_is_sent_is_counted_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    for is_terminal, shown in ((False, ""), (True, "\r1 message sent\r\x1b[K")):
        counter = online.Counter(is_terminal=is_terminal)
        counter.add()
        counter.add()  # too soon to be shown
        counter.end()
        assert capsys.readouterr().err == shown
