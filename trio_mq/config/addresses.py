"""Host and port texts to addresses and back.

In: what people write on a command line or in a file (``10.0.0.5:10911``, ``[fd00::7a]:9876``,
``broker.local``). Out: :class:`Address`, with IPv6 hosts in their canonical form and without
brackets. Called by :mod:`trio_mq.config.kinds` and by the command line; every refusal is a
ValueError that says what is wrong.
"""

from __future__ import annotations

import ipaddress
import re

import attrs

_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?",
    re.IGNORECASE | re.ASCII,
)
_ONLY_NUMBERS = re.compile(r"[0-9.]+", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)

ANY_HOSTS = frozenset({"0.0.0.0", "::"})
"""Hosts that mean every interface when one listens, and nothing when one connects."""


@attrs.frozen
class Address:
    """Where a server listens or is reached; `host` has no brackets, port 0 is a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        """The text form, ``[host]:port`` for IPv6."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_port(text: str, *, least: int = 0) -> int:
    """A TCP port from `least` to 65535."""
    if not _PORT.fullmatch(text) or not least <= int(text) <= 65535:
        raise ValueError(f"{text!r} is not a port from {least} to 65535")
    return int(text)


def parse_host(text: str) -> str:
    """A host name, or an IP address in canonical form without brackets; a scope id is kept."""
    bare = text
    if text.startswith("[") or text.endswith("]"):
        if not (text.startswith("[") and text.endswith("]") and ":" in text):
            raise ValueError(f"{text!r}: brackets belong around a whole IPv6 address")
        bare = text[1:-1]
    if not bare:
        raise ValueError("the host is missing")
    ip = _ip(bare)
    if ip is not None:
        return str(ip)
    if ":" in bare:
        raise ValueError(f"{text!r} is neither an IPv6 address nor a host without a port")
    if _ONLY_NUMBERS.fullmatch(bare):
        raise ValueError(f"{text!r} is not an IPv4 address")
    if not _HOST_NAME.fullmatch(bare):
        raise ValueError(f"{text!r} is not a host name or an IP address")
    return bare


def parse_reachable_host(text: str) -> str:
    """A host that other machines can be told to connect to.

    Refuses a port, and what cannot mean this machine elsewhere: wildcards, multicast, addresses
    that need a scope id.
    """
    head, colon, tail = text.rpartition(":")
    if colon and _PORT.fullmatch(tail) and (":" not in head or head.endswith("]")):
        raise ValueError(f"{text!r} holds a port; here goes the host alone")
    host = parse_host(text)
    if "%" in host:
        scope = host.partition("%")[2]
        raise ValueError(
            f"{text!r} has the scope id %{scope}, which only this machine understands; "
            "give an address that clients can reach"
        )
    if host in ANY_HOSTS:
        raise ValueError(f"{text!r} means every interface; clients need one address to connect to")
    ip = _ip(host)
    if ip is not None and ip.is_multicast:
        raise ValueError(f"{text!r} is a multicast address; name one of this machine")
    if ip is not None and ip.version == 6 and ip.is_link_local:
        raise ValueError(
            f"{text!r} is link-local: it needs a scope id, which differs on every machine; "
            "name a global or unique-local (fd00::/8) address"
        )
    return host


def parse_address(text: str, *, least_port: int = 0) -> Address:
    """``HOST:PORT``; an IPv6 host needs brackets where the text could be read in two ways."""
    if text.startswith("["):
        inside, bracket, rest = text.partition("]")
        if not bracket or not rest.startswith(":"):
            raise ValueError(f"{text!r} is not [IPV6]:PORT")
        return Address(parse_host(inside + "]"), parse_port(rest[1:], least=least_port))
    head, colon, tail = text.rpartition(":")
    if not colon or not tail:
        raise ValueError(f"{text!r} has no port; write HOST:PORT")
    if ":" in head and _ip(text) is not None:
        raise ValueError(f"{text!r} can be read in two ways; write [IPV6]:PORT")
    return Address(parse_host(head), parse_port(tail, least=least_port))


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
