"""Settings that all clients have, names of topics and groups, namespaces."""

import pytest

from trio_mq.client.options import (
    ClientOptions,
    Credentials,
    check_group,
    check_topic,
    texts,
    with_namespace,
    without_namespace,
)
from trio_mq.config import Address
from trio_mq.errors import ConfigError


def test_name_servers_as_one_text_or_several():
    found = (Address("a", 1), Address("b", 9876))
    assert ClientOptions.of("a:1;b").nameservers == found
    assert ClientOptions.of(["a:1", "b:9876"]).nameservers == found
    assert ClientOptions.of(["a:1;b", "a:1"]).nameservers == found


@pytest.mark.parametrize("nothing", ["", " ; ", []])
def test_no_name_server_says_how_one_is_written(nothing):
    with pytest.raises(ConfigError, match=r"nameserver: no address .* write host:port"):
        ClientOptions.of(nothing)


@pytest.mark.parametrize("bad", ["a:0", "a:b", "[::1", "a:1;b:99999"])
def test_a_bad_address_is_told(bad):
    with pytest.raises(ConfigError, match="nameserver"):
        ClientOptions.of(bad)


@pytest.mark.parametrize(
    "name", ["start_timeout_s", "call_timeout_s", "route_interval_s", "heartbeat_interval_s"]
)
@pytest.mark.parametrize("time_s", [0, -1])
def test_times_are_above_zero(name, time_s):
    with pytest.raises(ConfigError, match=f"{name}: {time_s} is not a time above 0"):
        ClientOptions.of("a:1", **{name: time_s})


def test_secrets_are_not_shown():
    text = repr(ClientOptions.of("a:1", credentials=Credentials("me", "secret", "token")))
    assert "me" in text
    assert "secret" not in text.replace("secret_key", "")
    assert "token" not in text.replace("security_token", "")


@pytest.mark.parametrize("check", [check_topic, check_group])
def test_names(check):
    for good in ("Orders", "a-b_c%d|e", "%RETRY%g", "9"):
        assert check(good) == good
    for bad, why in (("", "empty"), ("  ", "empty"), (None, "no text"), ("a b", "holds ' '"), ("a/b", "holds '/'"),
                     ("ä", "letters, digits")):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            check(bad)


def test_lengths_of_names():
    assert check_topic("t" * 127)
    assert check_group("g" * 255)
    with pytest.raises(ConfigError, match="128 characters, 127 are the most"):
        check_topic("t" * 128)
    with pytest.raises(ConfigError, match="256 characters, 255 are the most"):
        check_group("g" * 256)


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [("T", "ns%T"), ("%RETRY%g", "%RETRY%ns%g"), ("%DLQ%g", "%DLQ%ns%g"), ("ns%T", "ns%T")],
)
def test_namespaces(name, wrapped):
    assert with_namespace("ns", name) == wrapped
    assert with_namespace(None, name) == name
    assert without_namespace("ns", wrapped) == name.removeprefix("ns%")
    assert without_namespace(None, wrapped) == wrapped
    assert with_namespace("ns", wrapped) == wrapped


def test_one_text_or_several():
    assert texts("a") == ("a",)
    assert texts(["a", "b"]) == ("a", "b")
