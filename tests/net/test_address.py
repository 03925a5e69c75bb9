"""Addresses: what is accepted, what is refused and with which words, and which one a broker
advertises.
"""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.config.addresses import Address
from trio_mq.errors import ConfigError
from trio_mq.net.address import (
    Interface,
    choose_advertised,
    default_route_address,
    parse_address,
    parse_address_list,
    parse_advertised_host,
    resolve,
    system_interfaces,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876),
        (" localhost:1 ", "localhost", 1),
        ("rocketmq_namesrv.my-net:65535", "rocketmq_namesrv.my-net", 65535),
        ("[::1]:9876", "::1", 9876),
        ("[FD00:0:0:0:0:0:1:7A]:10911", "fd00::1:7a", 10911),
        ("[fe80::1%eth0]:9876", "fe80::1%eth0", 9876),
    ],
)
def test_address_is_read(text, host, port):
    assert parse_address(text) == Address(host, port)


def test_text_form_has_brackets_for_ipv6_only():
    assert str(Address("::1", 9876)) == "[::1]:9876"
    assert str(Address("broker.local", 10911)) == "broker.local:10911"


@given(st.ip_addresses(), st.integers(1, 65535))
def test_text_form_reads_back(ip, port):
    address = Address(str(ip), port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("127.0.0.1", "no port"),
        ("127.0.0.1:", "no port"),
        ("127.0.0.1:http", "'http' is not a port from 1 to 65535"),
        ("127.0.0.1:65536", "from 1 to 65535"),
        ("127.0.0.1:0", "from 1 to 65535"),
        ("127.0.0.1:٣", "from 1 to 65535"),
        ("127.0.0.1:-1", "from 1 to 65535"),
        ("::1:9876", "write [IPV6]:PORT"),
        ("[::1:9876", "not [IPV6]:PORT"),
        ("[::1]9876", "not [IPV6]:PORT"),
        ("[localhost]:9876", "brackets belong around a whole IPv6 address"),
        ("[:::1]:9876", "'[:::1]' is neither an IPv6 address"),
        ("256.0.0.1:9876", "'256.0.0.1' is not an IPv4 address"),
        ("http://a:9876", "'http://a' is neither"),
        ("a:1,b:2", "'a:1,b'"),
        ("a b:9876", "'a b' is not a host name"),
        (":9876", "the host is missing"),
        ("", "no port"),
    ],
)
def test_bad_address_is_refused_by_name(text, says):
    with pytest.raises(ConfigError, match="namesrvAddr: ") as caught:
        parse_address(text, what="namesrvAddr")
    assert says in str(caught.value)


def test_port_zero_is_for_listening():
    assert parse_address("127.0.0.1:0", port_zero=True) == Address("127.0.0.1", 0)


def test_default_port():
    assert parse_address("[::1]", default_port=9876) == Address("::1", 9876)
    assert parse_address("ns1", default_port=9876) == Address("ns1", 9876)


def test_c095_list_with_ipv6_gives_both_addresses():
    assert parse_address_list("[::1]:9876;127.0.0.1:9877") == (
        Address("::1", 9876),
        Address("127.0.0.1", 9877),
    )


def test_c095_error_names_the_bad_element_of_a_list():
    with pytest.raises(ConfigError, match=r"namesrvAddr: '::1:9876' can be read in two"):
        parse_address_list("127.0.0.1:9877;::1:9876;ns3:9876")


def test_list_skips_empty_elements_and_repetitions():
    assert parse_address_list(" ns1:1 ;; ns1:1; ns2 ;") == (Address("ns1", 1), Address("ns2", 9876))
    assert parse_address_list("") == ()


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("fd00::1:7a", "fd00::1:7a"),
        ("[::1]", "::1"),
        ("[FD00::1]", "fd00::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("broker.local", "broker.local"),
    ],
)
def test_c094_advertised_host_is_normalised(text, host):
    assert parse_advertised_host(text) == host


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[fe80::1%eth0]", "scope id %eth0"),
        ("fe80::1", "link-local"),
        ("0.0.0.0", "every interface"),
        ("::", "every interface"),
        ("ff02::1", "multicast"),
        ("224.0.0.1", "multicast"),
        ("10.0.0.1:10911", "holds a port"),
        ("[::1", "brackets"),
        ("fd00::g", "neither an IPv6 address"),
        ("", "missing"),
    ],
)
def test_c094_advertised_host_is_refused_with_the_reason(text, says):
    with pytest.raises(ConfigError, match="brokerIP1: ") as caught:
        parse_advertised_host(text)
    assert says in str(caught.value)


DOCKER = Interface("docker0", ("172.17.0.1",), is_up=False, is_bridge=True)
VPN = Interface("tun0", ("10.8.0.2",), is_point_to_point=True)
LAN = Interface("eth0", ("192.168.1.5", "fe80::5", "2001:db8::5"))
LOOPBACK = Interface("lo", ("127.0.0.1", "::1"), is_loopback=True)


def choose(*interfaces, configured=None, listen_host="0.0.0.0", default_route=None):
    return choose_advertised(
        configured=configured,
        listen_host=listen_host,
        interfaces=interfaces,
        default_route=default_route,
    )


def test_c085_down_and_vpn_interfaces_lose_and_the_reason_says_so():
    chosen = choose(LOOPBACK, DOCKER, VPN, LAN)
    assert chosen.host == "192.168.1.5"
    assert "eth0" in chosen.reason
    assert "docker0 172.17.0.1 (down)" in chosen.reason
    assert "tun0 10.8.0.2 (point-to-point)" in chosen.reason
    assert "brokerIP1 overrides it" in chosen.reason


def test_c085_configured_address_wins():
    chosen = choose(LAN, configured="broker.example.com")
    assert chosen.host == "broker.example.com"
    assert chosen.reason == "set by brokerIP1"


def test_c085_single_listening_address_is_advertised():
    assert choose(LAN, listen_host="127.0.0.1").host == "127.0.0.1"
    assert choose(LAN, listen_host="[::1]").host == "::1"
    assert choose(LAN, listen_host="::").host == "192.168.1.5"


def test_c085_default_route_decides_among_equals():
    other = Interface("eth1", ("10.0.0.7",))
    assert choose(LAN, other).host == "192.168.1.5"
    chosen = choose(LAN, other, default_route="10.0.0.7")
    assert chosen.host == "10.0.0.7"
    assert "source of the default route" in chosen.reason
    # but the route through a VPN does not make the VPN's address a good one
    assert choose(LAN, VPN, default_route="10.8.0.2").host == "192.168.1.5"


def test_c085_a_running_container_bridge_is_a_later_choice():
    running = Interface("docker0", ("172.17.0.1",), is_bridge=True)
    assert choose(running, LAN).host == "192.168.1.5"
    assert choose(running).host == "172.17.0.1"


def test_c085_ipv6_when_there_is_nothing_else_and_loopback_at_last():
    assert choose(Interface("eth0", ("fe80::5", "2001:db8::5"))).host == "2001:db8::5"
    chosen = choose(LOOPBACK, DOCKER)
    assert chosen.host == "127.0.0.1"
    assert "no other address is up" in chosen.reason


async def test_c086_message_ids_get_the_resolved_ip():
    host = await resolve(Address("localhost", 10911))
    assert (host.ip, host.port) == ("127.0.0.1", 10911)


async def test_c086_name_that_does_not_resolve_is_named(monkeypatch):
    async def fail(*args, **kwargs):
        raise OSError("Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", fail)
    with pytest.raises(
        ConfigError, match=r"brokerIP1: host name 'nowhere\.invalid' does not resolve"
    ):
        await resolve(Address("nowhere.invalid", 10911))


def test_interfaces_of_this_machine():
    found = system_interfaces()
    assert any(interface.is_loopback and "127.0.0.1" in interface.addresses for interface in found)
    route = default_route_address()
    assert route is None or any(route in interface.addresses for interface in found)
