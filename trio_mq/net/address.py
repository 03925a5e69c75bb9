"""Addresses as text: ``host:port``, IPv6 in brackets, lists of them, and the address that a broker
advertises.

In: what users and peers write. Out: an :class:`Address`, or a :class:`ConfigError` that names the
bad element and says how it is written. Called by the dialer, the registrar, clients, and at the
start of a broker. Parsing (by :mod:`trio_mq.config.addresses`) and choosing are pure;
:func:`resolve` asks the system's resolver, :func:`system_interfaces` the kernel. Source of the list
syntax: Apache NettyRemotingClient.updateNameServerAddressList (``host:port;host:port``).
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import anyio
import attrs

from trio_mq.config import addresses
from trio_mq.config.addresses import Address
from trio_mq.errors import ConfigError
from trio_mq.protocol.message import Host

_LOOPBACK_V4 = "127.0.0.1"


def parse_address(
    text: str, *, what: str = "address", default_port: int | None = None, port_zero: bool = False
) -> Address:
    """Read ``host:port`` or ``[v6]:port``.

    `what` is the setting to blame in errors; a missing port is an error unless there is a
    `default_port`; port 0 (take a free one) is accepted for listening only, with `port_zero`.
    """
    element = text.strip()
    bare_host = element.endswith("]") or ":" not in element
    try:
        if bare_host and element and default_port is not None:
            return Address(addresses.parse_host(element), default_port)
        return addresses.parse_address(element, least_port=0 if port_zero else 1)
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from error


def parse_address_list(
    text: str, *, what: str = "namesrvAddr", default_port: int | None = 9876
) -> tuple[Address, ...]:
    """Read ``host:port;host:port``; errors name the bad element.

    Empty elements are skipped, repeated ones count once, an empty list is ().
    """
    found: dict[Address, None] = {}
    for element in text.split(";"):
        if element.strip():
            found[parse_address(element, what=what, default_port=default_port)] = None
    return tuple(found)


def parse_advertised_host(text: str, *, what: str = "brokerIP1") -> str:
    """Read the host that a broker tells to others: IPv6 compressed and without brackets.

    Refuses what cannot mean this machine on another one.
    """
    try:
        host = addresses.parse_reachable_host(text.strip())
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from error
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host
    if ip.is_multicast:
        raise ConfigError(f"{what}: {host} is a multicast address; name one of this machine")
    if ip.version == 6 and ip.is_link_local:
        raise ConfigError(
            f"{what}: {host} is link-local: it needs a scope id, which differs on every machine, "
            f"so clients elsewhere cannot use it; name a global or unique-local (fd00::/8) address"
        )
    return host


@attrs.frozen
class Interface:
    """A network interface as far as the choice of an address needs it. `addresses` are IPs without
    a prefix length.
    """

    name: str
    addresses: tuple[str, ...]
    is_up: bool = True
    is_loopback: bool = False
    is_point_to_point: bool = False
    is_bridge: bool = False


@attrs.frozen
class Advertised:
    """The host that goes into routes (kept as written, names too), and why it is this one, for the
    start line.
    """

    host: str
    reason: str


def choose_advertised(
    *,
    configured: str | None,
    listen_host: str,
    interfaces: Sequence[Interface],
    default_route: str | None = None,
    what: str = "brokerIP1",
) -> Advertised:
    """Choose the host that clients are told.

    A configured one wins, then a listening host that is a single address, then the interfaces:
    down, loopback and link-local ones are out; plain ones go before bridges (containers), these
    before point-to-point links (VPN); IPv4 before IPv6; the source address of the default route
    first among equals.
    """
    if configured:
        host = parse_advertised_host(configured, what=what)
        return Advertised(host, f"set by {what}")
    if listen_host and not _is_any(listen_host):
        return Advertised(
            parse_advertised_host(listen_host, what="listening host"), "the listening address"
        )
    usable: list[tuple[tuple[int, bool, bool, int], str, Interface]] = []
    skipped: list[str] = []
    for interface in interfaces:
        for address in interface.addresses:
            problem = _unusable(interface, address)
            if problem:
                skipped.append(f"{interface.name} {address} ({problem})")
                continue
            kind = 2 if interface.is_point_to_point else 1 if interface.is_bridge else 0
            rank = (kind, ":" in address, address != default_route, len(usable))
            usable.append((rank, address, interface))
    usable.sort(key=lambda entry: entry[0])
    if not usable:
        reason = "no other address is up"
        chosen = _LOOPBACK_V4
    else:
        chosen, interface = usable[0][1], usable[0][2]
        route = ", source of the default route" if chosen == default_route else ""
        reason = f"first choice of the interfaces: {interface.name}{route}"
        skipped += [
            f"{entry[2].name} {entry[1]} ({_ranked_lower(entry[2])})" for entry in usable[1:]
        ]
    if skipped:
        reason += f"; not {', '.join(skipped)}"
    return Advertised(chosen, f"{reason}; {what} overrides it")


def _is_any(host: str) -> bool:
    return host.strip("[]") in addresses.ANY_HOSTS


def _unusable(interface: Interface, address: str) -> str | None:
    if not interface.is_up:
        return "down"
    parsed = ipaddress.ip_address(address)
    if interface.is_loopback or parsed.is_loopback:
        return "loopback"
    return "link-local" if parsed.is_link_local else None


def _ranked_lower(interface: Interface) -> str:
    if interface.is_point_to_point:
        return "point-to-point"
    return "bridge" if interface.is_bridge else "later choice"


async def resolve(address: Address, *, what: str = "brokerIP1") -> Host:
    """The IP behind an address, IPv4 first, for places that hold IPs only: message ids and records.

    The route keeps the name; see :class:`Advertised`. Raises ConfigError when the name does not
    resolve.
    """
    try:
        found = await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"{what}: host name {address.host!r} does not resolve ({error}); "
            f"message ids need its IP: add it to DNS or the hosts file, or set an IP"
        ) from error
    ips = [str(entry[4][0]).partition("%")[0] for entry in found]
    return Host(next((ip for ip in ips if ":" not in ip), ips[0]), address.port)


def default_route_address() -> str | None:
    """The source address that the kernel would use for the world, None without a route. Sends
    nothing.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(
                ("192.0.2.1", 9)
            )  # TEST-NET-1; connecting a datagram socket only asks the routing table
        except OSError:
            return None
        return str(probe.getsockname()[0])


_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915  # linux/sockios.h
_IFF_UP, _IFF_LOOPBACK, _IFF_POINTOPOINT, _IFF_RUNNING = 0x1, 0x8, 0x10, 0x40  # linux/if.h


def system_interfaces() -> tuple[Interface, ...]:
    """The machine's interfaces. Elsewhere than on Linux only the default route's address, as one
    interface.
    """
    inet6 = Path("/proc/net/if_inet6")
    if not Path("/sys/class/net").is_dir():
        route = default_route_address()
        return (Interface("default route", (route,)),) if route else ()
    v6: dict[str, list[str]] = {}
    for line in inet6.read_text().splitlines() if inet6.exists() else ():
        fields = line.split()
        v6.setdefault(fields[5], []).append(str(ipaddress.IPv6Address(bytes.fromhex(fields[0]))))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return tuple(
            _linux_interface(sock.fileno(), name, v6.get(name, []))
            for _, name in socket.if_nameindex()
        )


def _linux_interface(fd: int, name: str, v6: list[str]) -> Interface:
    request = struct.pack("16s24x", name.encode())
    try:
        (flags,) = struct.unpack_from("H", fcntl.ioctl(fd, _SIOCGIFFLAGS, request), 16)
    except OSError:
        flags = 0  # it went away between the two calls
    try:
        v4 = [socket.inet_ntoa(fcntl.ioctl(fd, _SIOCGIFADDR, request)[20:24])]
    except OSError:
        v4 = []
    return Interface(
        name,
        tuple(v4 + v6),
        # Without a carrier (a container bridge with no container) an interface is "up" but not
        # running.
        is_up=bool(flags & _IFF_UP and flags & _IFF_RUNNING),
        is_loopback=bool(flags & _IFF_LOOPBACK),
        is_point_to_point=bool(flags & _IFF_POINTOPOINT),
        is_bridge=Path(f"/sys/class/net/{name}/bridge").exists(),
    )
