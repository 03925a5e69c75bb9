"""What a message carries besides its record: hashes, hosts, ids, batch bodies and compressed
bodies.

In and out: text, bytes and small values. Called by the record codec, the processors, the store's
index and clients. Pure: addresses are numbers here, nothing is resolved, and time is an argument.

Format: Apache's MessageDecoder (ids, batch items), MessageClientIDSetter (unique ids),
MessageSysFlag and CompressionType (bodies), Java's String.hashCode (tags and index keys).
"""

from __future__ import annotations

import importlib
import ipaddress
import struct
import sys
import zlib
from collections.abc import Callable, Iterable
from datetime import datetime, tzinfo
from functools import lru_cache
from operator import mul
from typing import Any, Final, NamedTuple

import attrs

from trio_mq.errors import BodyError, HeaderError, LocalProtocolError
from trio_mq.protocol.codes import MessageFlag

# --- hashes ---------------------------------------------------------------------------------------

_CHUNK: Final = 256
_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(_CHUNK - 1, -1, -1))
_UTF16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 units, as a signed 32-bit number.

    A character outside the basic plane counts as its two surrogates.
    """
    units = text.encode("ascii") if text.isascii() else _utf16_units(text)
    n = len(units)
    if 0 < n <= _CHUNK:
        value: int = sum(map(mul, units, _POWERS[-n:])) & 0xFFFF_FFFF
    else:
        value = _long_hash(units)
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def _utf16_units(text: str) -> memoryview:
    return memoryview(text.encode(_UTF16, "surrogatepass")).cast("H")


def _long_hash(units: bytes | memoryview) -> int:
    value = 0
    for start in range(0, len(units), _CHUNK):
        part = units[start : start + _CHUNK]
        n = len(part)
        value = value * pow(31, n, 1 << 32) + sum(map(mul, part, _POWERS[-n:])) & 0xFFFF_FFFF
    return value


# A topic has few tags; whoever sends random ones pays for the hash.
_TAG_CACHE_ENTRIES: Final = 10_000
_TAG_CACHE_BYTES: Final = 128  # longest text that is kept, so that the cache stays below 3 MB
_tag_codes: dict[bytes, int] = {}


def tags_code_of(tags: bytes) -> int:
    """As :func:`tags_code`, for the raw property value; remembers short tags."""
    code = _tag_codes.get(tags)
    if code is None:
        code = java_hash(str(tags, "utf-8", "replace"))
        if len(tags) <= _TAG_CACHE_BYTES and len(_tag_codes) < _TAG_CACHE_ENTRIES:
            _tag_codes[tags] = code
    return code


def tags_code(tags: str | None) -> int:
    """The number that a consume queue keeps of a message's ``TAGS``: hash of the whole text, 0
    without tags.

    Apache: MessageExtBrokerInner.tagsString2tagsCode. ``A || B`` is one text too.
    """
    return java_hash(tags) if tags else 0


# --- hosts and ids --------------------------------------------------------------------------------


HOST_V4_SIZE: Final = 8
HOST_V6_SIZE: Final = 20
_HOST_CACHE_ENTRIES: Final = 4096  # the peers of a busy broker


@attrs.frozen
class Host:
    """A network address as records hold it: an IP literal and a port."""

    ip: str
    port: int

    @property
    def is_v6(self) -> bool:
        """Whether :attr:`packed` has 16 address bytes."""
        return ":" in self.ip

    @property
    def packed(self) -> bytes:
        """4 or 16 address bytes and the port in 4 bytes: the host field of a record."""
        return _pack_host(self.ip, self.port)

    @classmethod
    def unpack(cls, data: bytes) -> Host:
        """The host of an 8 or 20 byte field."""
        return _unpack_host(bytes(data))

    @classmethod
    def parse(cls, text: str) -> Host:
        """The host of ``ip:port``, ``[ipv6]:port`` or Java's ``/ip:port``."""
        ip, colon, port = text.removeprefix("/").rpartition(":")
        ip = ip.removeprefix("[").removesuffix("]")
        try:
            ipaddress.ip_address(ip.partition("%")[0])
            if not colon or not 0 <= int(port) <= 0xFFFF:
                raise ValueError("the port must be 0 to 65535")
            return cls(ip, int(port))
        except ValueError as error:
            raise HeaderError(f"{text!r} is not an address like 10.0.0.1:10911: {error}") from None

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if self.is_v6 else f"{self.ip}:{self.port}"


@lru_cache(maxsize=_HOST_CACHE_ENTRIES)
def _pack_host(ip: str, port: int) -> bytes:
    try:
        # A scope ("%eth0") means something on this machine only; records have no room for it.
        address = ipaddress.ip_address(ip.partition("%")[0])
        return address.packed + struct.pack(">i", port)
    except (ValueError, struct.error) as error:
        raise LocalProtocolError(
            f"host {ip}, port {port} cannot be stored: {error}; give a numeric address and port"
        ) from None


@lru_cache(maxsize=_HOST_CACHE_ENTRIES)
def _unpack_host(data: bytes) -> Host:
    port = int.from_bytes(data[-4:], "big", signed=True)
    if len(data) == HOST_V4_SIZE:
        return Host(f"{data[0]}.{data[1]}.{data[2]}.{data[3]}", port)
    if len(data) == HOST_V6_SIZE:
        return Host(str(ipaddress.IPv6Address(data[:16])), port)
    raise BodyError(f"a host field has 8 or 20 bytes, not {len(data)}")


def offset_message_id(host: Host, log_offset: int) -> str:
    """The id that a broker gives: store host and log offset as 32 (IPv4) or 56 (IPv6) upper-case
    hex digits.

    Apache: MessageDecoder.createMessageId.
    """
    return f"{host.packed.hex().upper()}{log_offset & 0xFFFF_FFFF_FFFF_FFFF:016X}"


def parse_offset_message_id(text: str) -> tuple[Host, int]:
    """Store host and log offset of a message id in either case; anything else raises
    :class:`HeaderError`."""
    try:
        data = bytes.fromhex(text) if len(text) in (32, 56) else b""
    except ValueError:
        data = b""
    if len(data) * 2 != len(text) or not data:  # fromhex skips blanks
        raise HeaderError(
            f"message id {text[:80]!r} is not an offset id: 32 or 56 hex digits are needed"
        )
    return Host.unpack(data[:-8]), int.from_bytes(data[-8:], "big", signed=True)


class UniqueIds:
    """Makes ``UNIQ_KEY`` values as a client does (Apache: MessageClientIDSetter).

    32 (IPv4) or 56 (IPv6) hex digits: address, process id (16 bits), a number per process (32 bits,
    Apache's class loader hash), milliseconds since the start of the month in local time (32 bits),
    counter (16 bits). One producer of ids per process and ``process_number``.
    """

    def __init__(self, ip: str, pid: int, process_number: int, zone: tzinfo | None = None) -> None:
        address = ipaddress.ip_address(ip.partition("%")[0]).packed
        prefix = address + struct.pack(">HI", pid & 0xFFFF, process_number & 0xFFFF_FFFF)
        self._prefix = prefix.hex().upper()
        self._zone = zone
        self._counter = 0
        self._month_start_ms = 0
        self._month_end_ms = 0

    def create(self, now_ms: int) -> str:
        """The next id; ``now_ms`` is the wall clock in ms since the epoch."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._enter_month(now_ms)
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        elapsed = (now_ms - self._month_start_ms) & 0xFFFF_FFFF
        return f"{self._prefix}{elapsed:08X}{counter:04X}"

    def _enter_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000, self._zone)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = divmod(now.year * 12 + now.month, 12)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(start.replace(year=year, month=month + 1).timestamp() * 1000)


# --- batch bodies ---------------------------------------------------------------------------------


class BatchItem(NamedTuple):
    """One message of a batch body. A NamedTuple, since one is made for each message sent."""

    flag: int
    body: bytes
    properties: bytes


_ITEM_HEAD: Final = struct.Struct(">i8xii")  # total size, magic and CRC (both 0), flag, body length
_ITEM_HEAD_SIZE: Final = _ITEM_HEAD.size
_ITEM_FIXED_SIZE: Final = _ITEM_HEAD_SIZE + 2
_PROPERTIES_LENGTH: Final = struct.Struct(">h")


def split_batch(body: bytes) -> list[BatchItem]:
    """The messages of a batch body (Apache: MessageDecoder.decodeMessages).

    Raises :class:`BodyError` when a length lies, and for a batch of no messages.
    """
    items: list[BatchItem] = []
    pos, end = 0, len(body)
    new = tuple.__new__
    while pos < end:
        if end - pos < _ITEM_FIXED_SIZE:
            raise _batch_error(items, pos, f"only {end - pos} bytes are left for its head")
        total, flag, body_length = _ITEM_HEAD.unpack_from(body, pos)
        body_at = pos + _ITEM_HEAD_SIZE
        body_end = body_at + body_length
        if body_length < 0 or body_end + 2 > end:
            raise _batch_error(items, pos, f"its body length {body_length} leads out of the batch")
        (properties_length,) = _PROPERTIES_LENGTH.unpack_from(body, body_end)
        properties_at = body_end + 2
        next_pos = properties_at + properties_length
        if properties_length < 0 or next_pos > end:
            raise _batch_error(
                items, pos, f"its properties length {properties_length} leads out of the batch"
            )
        if next_pos - pos != total:
            raise _batch_error(items, pos, f"it says {total} bytes and has {next_pos - pos}")
        items.append(new(BatchItem, (flag, body[body_at:body_end], body[properties_at:next_pos])))
        pos = next_pos
    if not items:
        raise BodyError("a batch holds no message; send at least one")
    return items


def _batch_error(items: list[BatchItem], pos: int, what: str) -> BodyError:
    return BodyError(f"batch item {len(items)} at byte {pos}: {what}")


def join_batch(items: Iterable[BatchItem]) -> bytes:
    """The batch body of several messages (Apache: MessageDecoder.encodeMessages)."""
    parts: list[bytes] = []
    for flag, body, properties in items:
        if len(properties) > 0x7FFF:
            raise LocalProtocolError(
                f"batch item {len(parts) // 4} has {len(properties)} bytes of properties; "
                "32767 are the most a message can carry"
            )
        total = _ITEM_FIXED_SIZE + len(body) + len(properties)
        head = _ITEM_HEAD.pack(total, flag, len(body))
        parts += (head, body, _PROPERTIES_LENGTH.pack(len(properties)), properties)
    return b"".join(parts)


# --- compressed bodies ----------------------------------------------------------------------------

_COMPRESSED: Final = int(MessageFlag.COMPRESSED)  # plain ints: & with an enumeration costs 0.5 us
_COMPRESSION_MASK: Final = 0x700
MAX_PLAIN_BODY_BYTES: Final = 64 * 1024 * 1024
"""A body inflates to at most this: 16 times the largest body that a broker takes by default. Beyond
it, a few kilobytes from outside could claim gigabytes of memory."""


def decompress(body: bytes, sys_flag: int, max_bytes: int = MAX_PLAIN_BODY_BYTES) -> bytes:
    """The body as the producer gave it: inflated when the flags of its record say so.

    Raises :class:`BodyError` for an unknown kind, a broken stream and a result above ``max_bytes``,
    and :class:`LocalProtocolError` when the package for LZ4 or ZSTD is not installed.
    """
    if not sys_flag & _COMPRESSED:
        return body
    kind = (sys_flag & _COMPRESSION_MASK) >> 8
    inflate = _INFLATE.get(kind)
    if inflate is None:
        raise BodyError(f"unknown compression {kind} of a body; 1 (LZ4), 2 (ZSTD) and 3 (ZLIB) are")
    plain = inflate(body, max_bytes)
    if len(plain) > max_bytes:
        raise BodyError(f"a body of {len(body)} bytes inflates to more than {max_bytes} bytes")
    return plain


def _inflate_zlib(body: bytes, max_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise BodyError(f"a compressed body is broken: {error}") from None
    return _complete(plain, stream.eof, max_bytes)


def _inflate_lz4(body: bytes, max_bytes: int) -> bytes:
    stream = _optional("lz4.frame", "LZ4").LZ4FrameDecompressor()
    try:
        plain: bytes = stream.decompress(body, max_length=max_bytes + 1)
    except RuntimeError as error:  # what the package raises for any bad frame
        raise BodyError(f"a compressed body is broken: {error}") from None
    return _complete(plain, stream.eof, max_bytes)


_ZSTD_STEP_BYTES: Final = 256
# A block of 4 bytes can stand for 128 KiB and the package has no output limit: 8 MiB a step.


def _inflate_zstd(body: bytes, max_bytes: int) -> bytes:
    module = _optional("zstandard", "ZSTD")
    stream = module.ZstdDecompressor().decompressobj()
    plain = bytearray()
    try:
        for start in range(0, len(body), _ZSTD_STEP_BYTES):
            plain += stream.decompress(body[start : start + _ZSTD_STEP_BYTES])
            if stream.eof or len(plain) > max_bytes:
                break
    except module.ZstdError as error:
        raise BodyError(f"a compressed body is broken: {error}") from None
    return _complete(bytes(plain), stream.eof, max_bytes)


def _complete(plain: bytes, at_end: bool, max_bytes: int) -> bytes:
    if not at_end and len(plain) <= max_bytes:
        raise BodyError("a compressed body is broken: it ends in the middle of its stream")
    return plain


def _optional(module: str, kind: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise LocalProtocolError(
            f"a body is compressed with {kind}, which needs an extra package: "
            "install trio-mq[compression]"
        ) from None


# Kind 0 is what clients of before the kinds sent: always ZLIB.
_INFLATE: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    0: _inflate_zlib,
    1: _inflate_lz4,
    2: _inflate_zstd,
    3: _inflate_zlib,
}
