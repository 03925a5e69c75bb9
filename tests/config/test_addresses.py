"""Hosts and ports as people write them: normalised, or refused with the reason."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.config.addresses import (
    Address,
    parse_address,
    parse_host,
    parse_port,
    parse_reachable_host,
)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("[::1]", "::1"),
        ("FD00:0:0:0::1:7A", "fd00::1:7a"),
        ("[fe80::1%eth0]", "fe80::1%eth0"),
        ("broker.local", "broker.local"),
        ("my_broker-1", "my_broker-1"),
    ],
)
def test_c094_hosts_are_normalised(text: str, host: str) -> None:
    """C094: brackets go, IPv6 gets its short form."""
    assert parse_host(text) == host


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the host is missing"),
        ("[]", "brackets belong around"),
        ("[10.0.0.5]", "brackets belong around"),
        ("[::1", "brackets belong around"),
        ("::1]", "brackets belong around"),
        ("10.0.0.300", "is not an IPv4 address"),
        ("10.0", "is not an IPv4 address"),
        ("fd00::zz", "is neither an IPv6 address nor"),
        ("bad host", "is not a host name"),
        ("-a", "is not a host name"),
        ("١٢٧.0.0.1", "is not a host name"),
        ("a" * 300, "is not a host name"),
    ],
)
def test_bad_hosts_say_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_host(text)


@pytest.mark.parametrize("text", ["[fd00::1:7a]", "fd00::1:7a", "FD00::1:007A"])
def test_c094_reachable_addresses_are_normalised(text: str) -> None:
    """C094: brokerIP1 with and without brackets."""
    assert parse_reachable_host(text) == "fd00::1:7a"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[fe80::1%eth0]", "has the scope id %eth0, which only this machine understands"),
        ("fe80::1%25eth0", "has the scope id"),
        ("fe80::1", "is link-local"),
        ("0.0.0.0", "means every interface"),
        ("[::]", "means every interface"),
        ("224.0.0.1", "is a multicast address"),
        ("ff02::1", "is a multicast address"),
        ("10.0.0.5:10911", "holds a port"),
        ("[::1]:10911", "holds a port"),
        ("broker.local:10911", "holds a port"),
    ],
)
def test_c094_addresses_that_clients_cannot_use_are_refused(text: str, why: str) -> None:
    """C094: the refusal gives the exact reason."""
    with pytest.raises(ValueError, match=why):
        parse_reachable_host(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9876", Address("127.0.0.1", 9876)),
        ("[::1]:9876", Address("::1", 9876)),
        ("localhost:0", Address("localhost", 0)),
        # five digits cannot be a group of an IPv6 address: this is what Apache writes into routes
        ("fd00::1:10911", Address("fd00::1", 10911)),
        ("[fe80::1%eth0]:80", Address("fe80::1%eth0", 80)),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("127.0.0.1", "has no port"),
        ("10911", "has no port"),
        ("127.0.0.1:", "has no port"),
        (":10911", "the host is missing"),
        ("::1:9876", r"can be read in two ways; write \[IPV6\]:PORT"),
        ("[::1]9876", r"is not \[IPV6\]:PORT"),
        ("[::1]", r"is not \[IPV6\]:PORT"),
        ("a:65536", "'65536' is not a port from 0 to 65535"),
        ("a:-1", "'-1' is not a port"),
        ("a:http", "'http' is not a port"),
        ("a:١", "is not a port"),
    ],
)
def test_bad_addresses_say_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_address(text)


def test_ports_have_a_least_value() -> None:
    assert parse_port("0") == 0
    with pytest.raises(ValueError, match="'0' is not a port from 1 to 65535"):
        parse_port("0", least=1)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_written_addresses_are_read_back(ip: object, port: int) -> None:
    address = Address(str(ip), port)
    assert parse_address(str(address)) == address


@given(st.text())
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    for parse in (parse_address, parse_host, parse_reachable_host):
        with suppress(ValueError):
            parse(text)
