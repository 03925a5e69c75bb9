"""Addresses as text: ``host:port``, IPv6 in brackets, lists of them, and the address that a broker
advertises.

In: what users and peers write. Out: an :class:`Address`, or a :class:`ConfigError` that names the
bad element and says how it is written. Called by settings, by the dialer, by the registrar and at
the start of a broker. Parsing and choosing are pure; :func:`resolve` asks the system's resolver,
:func:`system_interfaces` the kernel. Source of the list syntax: Apache
NettyRemotingClient.updateNameServerAddressList (``host:port;host:port``).
"""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import anyio
import attrs

from trio_mq.errors import ConfigError
from trio_mq.protocol.message import Host

#: Label characters of a host name. The underscore is not in the RFC, but container tools put it
#: into names.
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?\Z")
_LOOPBACK_V4 = "127.0.0.1"


@attrs.frozen(order=True)
class Address:
    """A host name or IP (IPv6 without brackets, compressed) and a TCP port. ``str`` gives the
    peers' text form.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """The host as it stands before a port: IPv6 in brackets, all else as it is."""
    return f"[{host}]" if ":" in host else host


def parse_address(
    text: str, *, what: str = "address", default_port: int | None = None, port_zero: bool = False
) -> Address:
    """Read ``host:port`` or ``[v6]:port``.

    `what` is the setting to blame in errors; a missing port is an error unless there is a
    `default_port`; port 0 (take a free one) is accepted for listening only, with `port_zero`.
    """
    element = text.strip()
    host, port_text = _split(element, what)
    if port_text is None:
        if default_port is None:
            raise ConfigError(f"{what}: {element!r} has no port; write host:port")
        return Address(parse_host(host, what=what), default_port)
    lowest = 0 if port_zero else 1
    # str.isdigit also accepts other scripts' digits, which the peers do not read.
    if not (port_text.isascii() and port_text.isdigit() and lowest <= int(port_text) <= 65535):
        raise ConfigError(
            f"{what}: {element!r} has port {port_text!r}; a port is a number from {lowest} to 65535"
        )
    return Address(parse_host(host, what=what), int(port_text))


def _split(element: str, what: str) -> tuple[str, str | None]:
    """Host (brackets kept) and port text, which is None when there is none."""
    if "://" in element:
        raise ConfigError(f"{what}: {element!r} is a URL; write only host:port")
    if "," in element:
        raise ConfigError(f"{what}: {element!r} holds a comma; addresses are separated by ';'")
    if element.startswith("["):
        end = element.find("]")
        if end < 0:
            raise ConfigError(f"{what}: {element!r} opens a bracket and does not close it")
        rest = element[end + 1 :]
        if rest and not rest.startswith(":"):
            raise ConfigError(
                f"{what}: {element!r} has {rest!r} after the bracket; write [IPv6]:port"
            )
        return element[: end + 1], rest[1:] if rest else None
    if element.count(":") > 1:
        raise ConfigError(
            f"{what}: {element!r} is IPv6 without brackets, so its port is not clear; "
            f"write [IPv6]:port"
        )
    host, colon, port_text = element.partition(":")
    return host, port_text if colon else None


def parse_address_list(
    text: str, *, what: str = "namesrvAddr", default_port: int | None = 9876
) -> tuple[Address, ...]:
    """Read ``host:port;host:port``. Empty elements are skipped, repeated ones count once, an empty
    list is ().
    """
    found: dict[Address, None] = {}
    for element in text.split(";"):
        if element.strip():
            found[parse_address(element, what=what, default_port=default_port)] = None
    return tuple(found)


def parse_host(text: str, *, what: str = "host") -> str:
    """Read a host name, an IPv4 or an IPv6 address, the latter with or without brackets.

    IPv6 comes back compressed and without brackets, an IPv4-mapped one as IPv4. A scope id stays on
    a link-local address, where it says which link is meant, and is dropped elsewhere, where it says
    nothing.
    """
    host = text.strip()
    if host.startswith("[") != host.endswith("]"):
        raise ConfigError(f"{what}: {host!r} has one bracket without the other")
    bare = host.removeprefix("[").removesuffix("]")
    if ":" in bare:
        return _parse_ipv6(bare, what)
    if bare != host:
        raise ConfigError(f"{what}: {host!r} has brackets around something that is not IPv6")
    if bare and all(part.isdigit() for part in bare.split(".")):
        try:
            return str(ipaddress.IPv4Address(bare))
        except ValueError as error:
            raise ConfigError(f"{what}: {host!r} is not an IPv4 address: {error}") from error
    if not _HOST_NAME.match(bare):
        raise ConfigError(f"{what}: {host!r} is neither an IP address nor a host name")
    return bare


def _parse_ipv6(bare: str, what: str) -> str:
    try:
        address = ipaddress.IPv6Address(bare)
    except ValueError as error:
        raise ConfigError(f"{what}: {bare!r} is not an IPv6 address: {error}") from error
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.scope_id is not None and not address.is_link_local:
        return str(ipaddress.IPv6Address(int(address)))
    return str(address)


def parse_advertised_host(text: str, *, what: str = "brokerIP1") -> str:
    """Read the host that a broker tells to others; refuses what cannot mean this machine on another
    one.
    """
    host = parse_host(text, what=what)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        raise ConfigError(
            f"{what}: {host} means 'every address' and cannot be connected to; name one"
        )
    if address.is_multicast:
        raise ConfigError(f"{what}: {host} is a multicast address; name one of this machine")
    if isinstance(address, ipaddress.IPv6Address) and address.is_link_local:
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
    return host.strip("[]") in ("0.0.0.0", "::", "*")


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
