"""Values: the range of each sort, and that what is shown can be read again."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from trio_mq.config import kinds
from trio_mq.config.addresses import Address
from trio_mq.config.kinds import Kind


class Colour(enum.Enum):
    RED = "RED"
    DARK_RED = "DARK_RED"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (kinds.FLAG, "true", True),
        (kinds.FLAG, "FALSE", False),
        (kinds.integer(0), "+7", 7),
        (kinds.integer(-5, 5), "-5", -5),
        (kinds.integer(0), "2147483647", 2**31 - 1),
        (kinds.integer(0, kinds.LONG_MAX), "9223372036854775807", 2**63 - 1),
        (kinds.choice(Colour), "dark_red", Colour.DARK_RED),
        (kinds.text(1, 3), "abc", "abc"),
        (kinds.HOURS, "4", (4,)),
        (kinds.HOURS, "22; 04;4", (4, 22)),
        (kinds.ADDRESSES, "", ()),
        (kinds.ADDRESSES, "a:1;;b:2;a:1;", (Address("a", 1), Address("b", 2))),
        (kinds.LISTEN_ADDRESS, "[::1]:0", Address("::1", 0)),
        (kinds.OPTIONAL_PATH, "", None),
        (kinds.OPTIONAL_PATH, "/a/../b", "/b"),
        (kinds.COMMIT_LOG_PATH, "/b", "/b"),
        (kinds.REACHABLE_HOST, "", None),
        (kinds.REACHABLE_HOST, "[::1]", "::1"),
        (kinds.LISTEN_HOST, "0.0.0.0", "0.0.0.0"),
        (kinds.DELAY_LEVELS, "1s  5m 2h\t1d", "1s 5m 2h 1d"),
    ],
)
def test_values_are_read_and_shown(kind: Kind[Any], text: str, value: object) -> None:
    assert kind.parse(text) == value
    assert kind.parse(kind.show(kind.parse(text))) == value
    assert kind.legal


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (kinds.FLAG, "yes", "not a truth value"),
        (kinds.FLAG, "", "not a truth value"),
        (kinds.integer(0), "1.5", "not a whole number"),
        (kinds.integer(0), "", "not a whole number"),
        (kinds.integer(0), "1_000", "not a whole number"),
        (kinds.integer(0), "٣", "not a whole number"),
        (kinds.integer(0), "-1", "out of range"),
        (kinds.integer(0), "2147483648", "out of range"),
        (kinds.integer(0, kinds.LONG_MAX), "9" * 5000, "out of range"),
        (kinds.choice(Colour), "blue", "not one of the known words"),
        (kinds.text(1, 3), "", "0 characters long"),
        (kinds.text(1, 3), "abcd", "4 characters long"),
        (kinds.text(1, 3), "a b", "holds a blank"),
        (kinds.text(1, 3), "a\x07", "holds a blank or a control character"),
        (kinds.HOURS, "25", "'25' is not an hour"),
        (kinds.HOURS, "4;", "'' is not an hour"),
        (kinds.HOURS, "04,05", "'04,05' is not an hour"),
        (kinds.PATH, "", "the path is missing"),
        (kinds.COMMIT_LOG_PATH, "/a,/b", "several directories"),
        (kinds.DELAY_LEVELS, "", "there is no level"),
        (kinds.DELAY_LEVELS, "1s 5x", "'5x' is not a number followed by"),
    ],
)
def test_bad_values_say_why(kind: Kind[Any], text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        kind.parse(text)


def test_c095_a_list_of_name_servers_names_its_bad_element() -> None:
    """C095: IPv6 elements work, and the bad one is quoted."""
    assert kinds.ADDRESSES.parse("[::1]:9876;127.0.0.1:9877") == (
        Address("::1", 9876),
        Address("127.0.0.1", 9877),
    )
    with pytest.raises(ValueError, match=r"'::1:9876' can be read in two ways"):
        kinds.ADDRESSES.parse("127.0.0.1:9877;::1:9876")
    with pytest.raises(ValueError, match=r"'0' is not a port from 1"):
        kinds.ADDRESSES.parse("127.0.0.1:0")


def test_delay_levels_in_ms() -> None:
    assert kinds.delay_levels_ms("1s 5m 2h 1d") == (1000, 300_000, 7_200_000, 86_400_000)


def test_legal_ranges_are_readable() -> None:
    assert kinds.integer(1, what="whole hours").legal == "whole hours, 1 or more"
    assert kinds.PORT.legal == "a port from 0 to 65535"
    assert kinds.choice(Colour).legal == "RED or DARK_RED"
