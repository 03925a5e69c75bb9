"""What values a setting may have: one :class:`Kind` knows how to read, write and explain them.

In: the text of a value, blanks already cut. Out: a typed value, or a ValueError that says what is
wrong with it. Called by :mod:`trio_mq.config.loading`, which adds the key and the place. Values follow
Java's types, so that a file means the same to Apache's broker (``int`` has 32 bits, ``long`` 64).
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import attrs

from trio_mq.config.addresses import Address, parse_address, parse_host, parse_reachable_host

T = TypeVar("T")
E = TypeVar("E", bound=enum.Enum)

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DELAY = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)
_DELAY_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def show_plain(value: object) -> str:
    """Text of a value, an absent one as nothing."""
    return "" if value is None else str(value)


@attrs.frozen
class Kind(Generic[T]):
    """How one sort of value is read from text and shown; `legal` explains the range to people."""

    parse: Callable[[str], T]
    legal: str
    show: Callable[[T], str] = show_plain
    clamp: tuple[int, int] | None = None
    """Smallest and largest value that have an effect. Others are moved there, as Apache does, with
    a notice.
    """


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("not a truth value")
    return lowered == "true"


FLAG: Final = Kind[bool](_flag, "true or false", lambda value: str(value).lower())


def integer(
    least: int,
    most: int = INT_MAX,
    *,
    what: str = "a whole number",
    clamp: tuple[int, int] | None = None,
) -> Kind[int]:
    """Whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise ValueError("not a whole number")
        if len(text) > 20 or not least <= int(text) <= most:
            raise ValueError("out of range")
        return int(text)

    legal = f"{what} from {least} to {most}"
    if most >= INT_MAX:
        legal = f"{what}, {least} or more"
    return Kind(parse, legal, clamp=clamp)


def choice(options: type[E]) -> Kind[E]:
    """One of an enumeration whose values are the peers' words; case does not matter."""
    words = {str(option.value).upper(): option for option in options}

    def parse(text: str) -> E:
        try:
            return words[text.upper()]
        except KeyError:
            raise ValueError("not one of the known words") from None

    return Kind(parse, " or ".join(words), lambda option: str(option.value))


def text(least: int = 0, most: int = 255) -> Kind[str]:
    """Text of `least` to `most` characters without blanks or control characters."""

    def parse(value: str) -> str:
        if not least <= len(value) <= most:
            raise ValueError(f"{len(value)} characters long")
        if any(char.isspace() or not char.isprintable() for char in value):
            raise ValueError("holds a blank or a control character")
        return value

    return Kind(parse, f"text of {least} to {most} characters without blanks")


def _path(value: str) -> str:
    if not value:
        raise ValueError("the path is missing")
    return os.path.abspath(value)


PATH: Final = Kind[str](_path, "the path of a directory or file")


def _one_directory(value: str) -> str | None:
    if "," in value:
        raise ValueError("several directories are not supported in this release")
    return _path(value) if value else None


COMMIT_LOG_PATH: Final = Kind[str | None](_one_directory, "a path, or nothing", show_plain)
OPTIONAL_PATH: Final = Kind[str | None](
    lambda value: _path(value) if value else None, "a path, or nothing", show_plain
)
LISTEN_HOST: Final = Kind[str](
    parse_host, "an address of this machine, 0.0.0.0 or :: for all of them, or a host name"
)
OPTIONAL_LISTEN_HOST: Final = Kind[str | None](
    lambda value: parse_host(value) if value else None,
    "an address of this machine, 0.0.0.0 or :: for all of them, a host name, or nothing",
    show_plain,
)
REACHABLE_HOST: Final = Kind[str | None](
    lambda value: parse_reachable_host(value) if value else None,
    "an IP address or host name that clients can connect to",
    show_plain,
)
LAST_PORT: Final = 65_535
PORT: Final = integer(0, LAST_PORT, what="a port")
LISTEN_ADDRESS: Final = Kind[Address](parse_address, "HOST:PORT; port 0 takes a free one")


def _addresses(value: str) -> tuple[Address, ...]:
    """The peers' list form ``host:port;host:port``; empty elements are skipped, as Apache's clients
    do.
    """
    elements = [element.strip() for element in value.split(";")]
    found = [parse_address(element, least_port=1) for element in elements if element]
    return tuple(dict.fromkeys(found))


ADDRESSES: Final = Kind[tuple[Address, ...]](
    _addresses, "HOST:PORT, several separated by ';'", lambda value: ";".join(map(str, value))
)


OPTIONAL_ADDRESS: Final = Kind[Address | None](
    lambda value: parse_address(value, least_port=1) if value else None,
    "HOST:PORT, or nothing",
    show_plain,
)


def _hours(value: str) -> tuple[int, ...]:
    hours: list[int] = []
    for element in value.split(";"):
        hour = element.strip()
        if not re.fullmatch(r"[0-9]{1,2}", hour, re.ASCII) or int(hour) > 23:
            raise ValueError(f"{hour!r} is not an hour of the day")
        hours.append(int(hour))
    return tuple(sorted(set(hours)))


HOURS: Final = Kind[tuple[int, ...]](
    _hours,
    "hours of the day from 0 to 23, several separated by ';'",
    lambda value: ";".join(f"{hour:02}" for hour in value),
)


def delay_levels_ms(value: str) -> tuple[int, ...]:
    """Delay of each level in ms, level 1 first, from text such as ``1s 5m 2h 1d``."""
    delays: list[int] = []
    for element in value.split():
        match = _DELAY.fullmatch(element)
        if match is None:
            raise ValueError(f"{element!r} is not a number followed by s, m, h or d")
        delays.append(int(match[1]) * _DELAY_UNIT_MS[match[2]])
    if not delays:
        raise ValueError("there is no level")
    return tuple(delays)


def _delay_text(value: str) -> str:
    delay_levels_ms(value)
    return " ".join(value.split())


DELAY_LEVELS: Final = Kind[str](
    _delay_text, "delays such as 10s, 5m, 2h, 1d, separated by blanks; the first is level 1"
)
