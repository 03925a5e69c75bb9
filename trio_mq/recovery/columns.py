"""Many records checked at once, with numpy: the same answers as :func:`trio_mq.protocol.verdict.check`, several times
as fast.

In: a window of the log that begins with a record. Out: :class:`ColumnLot` for records of the usual kind (the first
version, IPv4 hosts, no CRC among the properties, no inner batch, not delayed) that pass every rule, and the position
of any other record, which has to be asked for by itself. So a rule is never decided here against a record. Imported by
:mod:`trio_mq.recovery.iterators` where numpy is installed; nothing depends on it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trio_mq.protocol.layout import FIXED_RECORD_SIZE, MAGIC_V1
from trio_mq.protocol.verdict import CRC_TAIL_SIZE, SCHEDULE_TOPIC, Whole, check, crc32
from trio_mq.recovery.lots import Lot

Longs: TypeAlias = NDArray[np.int64]
ColumnScan: TypeAlias = Callable[..., Iterator["Lot | int"]]

_HEAD: Final = np.dtype(
    {
        "names": [
            *("size", "magic", "crc", "queue_id", "queue_offset", "log_offset"),
            *("sys_flag", "store_ms", "body"),
        ],
        "formats": [">i4", ">i4", ">i4", ">i4", ">i8", ">i8", ">i4", ">i8", ">i4"],
        "offsets": [0, 4, 8, 12, 20, 28, 36, 56, 84],
        "itemsize": 88,
    }
)
_HEAD_BYTES: Final = 88
_SMALLEST: Final = FIXED_RECORD_SIZE + 1
_IPV6: Final = 0x30
#: What :func:`check` looks for beyond the fields: none of it is decided here.
_INNER_NUM: Final = b"INNER_NUM\x01"
_UNDERLINE: Final = ord("_")
#: For hashes of topics; whether two with one hash are the same is looked at.
_WEIGHTS: Final = np.array([pow(1_099_511_628_211, n, 1 << 62) for n in range(1, 129)], np.int64)
#: Fewer records than this are checked one by one.
_LEAST: Final = 8
#: Records of one size after which more of them are expected.
_ALIKE: Final = 4
_size_at = Struct(">i").unpack_from


class ColumnLot(Lot):
    """Records that lie in one window, as columns. Positions are bytes of the window."""

    __slots__ = ("base", "heads", "positions", "properties_at", "topic_at", "window")

    def __init__(
        self,
        window: bytes,
        base: int,
        positions: Longs,
        heads: NDArray[np.void],
        topic_at: Longs,
        properties_at: Longs,
    ) -> None:
        self.window = window
        self.base = base
        self.positions = positions
        self.heads = heads
        #: Where the topic begins; its last byte is two before the properties.
        self.topic_at = topic_at
        self.properties_at = properties_at

    @property
    def begin(self) -> int:
        """See :class:`trio_mq.recovery.lots.Lot`."""
        return self.base + int(self.positions[0])

    @property
    def end(self) -> int:
        """See :class:`trio_mq.recovery.lots.Lot`."""
        return self.base + int(self.positions[-1]) + int(self.heads["size"][-1])

    @property
    def count(self) -> int:
        """See :class:`trio_mq.recovery.lots.Lot`."""
        return len(self.positions)

    @property
    def newest_ms(self) -> int:
        """See :class:`trio_mq.recovery.lots.Lot`."""
        return int(self.heads["store_ms"].max())

    def records(self) -> Sequence[Whole]:
        """See :class:`trio_mq.recovery.lots.Lot`; they were checked already, and are only read."""
        window, base, end = self.window, self.base, len(self.window)
        found: list[Whole] = []
        for at in self.positions.tolist():
            verdict = check(window, at, end, check_crc=False, expected_offset=base + at)
            assert type(verdict) is Whole, verdict
            found.append(verdict)
        return found

    def topics(self) -> list[bytes]:
        """The topic of each record."""
        window = self.window
        ends = (self.properties_at - 2).tolist()
        return [window[a:b] for a, b in zip(self.topic_at.tolist(), ends, strict=True)]

    def properties(self) -> list[bytes]:
        """The property text of each record."""
        window = self.window
        ends = (self.positions + self.heads["size"]).tolist()
        return [window[a:b] for a, b in zip(self.properties_at.tolist(), ends, strict=True)]

    def queue_offsets(self) -> Iterable[tuple[bytes, int, int]]:
        """See :class:`trio_mq.recovery.lots.Lot`."""
        heads = self.heads
        ids, offsets = heads["queue_id"].tolist(), heads["queue_offset"].tolist()
        return zip(self.topics(), ids, offsets, strict=True)

    def by_queue(self) -> dict[tuple[str, int], int]:
        """See :class:`trio_mq.recovery.lots.Lot`."""
        queue_ids = self.heads["queue_id"].astype(np.int64)
        lengths = self.properties_at - 2 - self.topic_at
        found: dict[tuple[str, int], int] = {}
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            data = np.frombuffer(self.window, np.uint8)
            names = data[self.topic_at[rows][:, None] + np.arange(length)]
            found.update(_counted(names, queue_ids[rows]))
        return found


def _counted(names: NDArray[np.uint8], queue_ids: Longs) -> dict[tuple[str, int], int]:
    """How often each name, given as a row of bytes, comes with each queue id."""
    hashes = names @ _WEIGHTS[: names.shape[1]] * 31 + queue_ids
    _, first, place, counts = np.unique(
        hashes, return_index=True, return_inverse=True, return_counts=True
    )
    if (names != names[first][place]).any() or (queue_ids != queue_ids[first][place]).any():
        rows = Counter(zip(map(bytes, names), queue_ids.tolist(), strict=True))
    else:
        rows = Counter()
        for row, count in zip(first.tolist(), counts.tolist(), strict=True):
            rows[names[row].tobytes(), int(queue_ids[row])] = count
    return {(str(name, "utf-8", "replace"), queue): n for (name, queue), n in rows.items()}


def scan(window: bytes, base: int, *, check_crc: bool) -> Iterator[Lot | int]:
    """The records of a window, whose first byte has the log offset `base`, as far as they lie in it as a whole.

    Yields lots, and the positions of records that have to be checked by themselves; to go on after such a position
    says that there is a whole record. What follows the last record is not looked at.
    """
    places = _claims(window)
    if len(places) < _LEAST:
        yield from places
        return
    positions = np.array(places, np.int64)
    heads = np.ndarray((len(window) - _HEAD_BYTES + 1,), _HEAD, window, strides=(1,))[positions]
    good, topic_at, properties_at = _usual(window, base, positions, heads)
    if check_crc:
        good &= _crc_fits(window, positions + _HEAD_BYTES, heads)
    if good.all():
        yield ColumnLot(window, base, positions, heads, topic_at, properties_at)
        return
    # Runs of usual records, and others between them.
    odd = np.flatnonzero(~good).tolist()
    first = 0
    for place in [*odd, len(places)]:
        if place > first:
            run = slice(first, place)
            yield ColumnLot(
                window, base, positions[run], heads[run], topic_at[run], properties_at[run]
            )
        if place < len(places):
            yield places[place]
        first = place + 1


def _claims(window: bytes) -> list[int]:
    """Positions of records when each is as long as it claims to be."""
    places: list[int] = []
    add = places.append
    at, last, end = 0, len(window) - _SMALLEST, len(window)
    before = alike = 0
    while at <= last:
        (size,) = _size_at(window, at)
        following = at + size
        if size < _SMALLEST or following > end:
            break
        add(at)
        at = following
        if size != before:
            before, alike = size, 0
            continue
        alike += 1
        if alike == _ALIKE:
            # Many producers send messages of one length: such a run is looked at as a whole.
            count = _run_of(window, at, size)
            places += range(at, at + count * size, size)
            at += count * size
    return places


def _run_of(window: bytes, at: int, size: int) -> int:
    """How many records from a position on claim to have one size, and lie in the window."""
    most = (len(window) - at) // size
    if most <= 0:
        return 0
    claims = np.ndarray((most,), ">i4", window, offset=at, strides=(size,))
    others = np.flatnonzero(claims != size)
    return int(others[0]) if len(others) else most


def _usual(
    window: bytes, base: int, positions: Longs, heads: NDArray[np.void]
) -> tuple[NDArray[np.bool_], Longs, Longs]:
    """Which records are usual and keep all rules but that of the body CRC; where topics and properties lie."""
    data = np.frombuffer(window, np.uint8)
    sizes, bodies = heads["size"].astype(np.int64), heads["body"].astype(np.int64)
    ends = positions + sizes
    good = heads["magic"] == MAGIC_V1
    good &= (heads["sys_flag"] & _IPV6) == 0
    good &= heads["log_offset"] == positions + base
    good &= (bodies >= 0) & (bodies <= sizes - _SMALLEST)
    # Whatever is wrong so far must not lead out of the window below.
    topic_at = positions + _HEAD_BYTES + np.where(good, bodies, 0) + 1
    topic_lengths = data[topic_at - 1].astype(np.int64)
    properties_at = topic_at + topic_lengths + 2
    good &= (topic_lengths < 128) & (properties_at <= ends)
    # Delayed messages have a rule of their own.
    good &= (topic_lengths != len(SCHEDULE_TOPIC)) | (data[topic_at] != ord(SCHEDULE_TOPIC[0]))
    properties_at = np.where(good, properties_at, topic_at + 2)
    lengths = data[properties_at - 2].astype(np.int64) * 256 + data[properties_at - 1]
    good &= properties_at + lengths == ends
    good &= lengths < 1 << 15
    good &= (lengths == 0) | (data[ends - 1] != 0)
    sealed = (data[np.maximum(ends - CRC_TAIL_SIZE, 0)] == _UNDERLINE) & (lengths >= CRC_TAIL_SIZE)
    good &= ~sealed
    if _may_hold(data, _INNER_NUM):
        at = window.find(_INNER_NUM)
        while at >= 0:
            good[np.searchsorted(positions, at, "right") - 1] = False
            at = window.find(_INNER_NUM, at + 1)
    return good, topic_at, properties_at


def _may_hold(data: NDArray[np.uint8], text: bytes) -> bool:
    """Whether the last two bytes of a text are anywhere: found in a third of the time that the whole text takes."""
    pair = int.from_bytes(text[-2:], sys.byteorder)
    return any(
        (data[first : first + (len(data) - first) // 2 * 2].view(np.uint16) == pair).any()
        for first in (0, 1)
    )


def _crc_fits(window: bytes, body_at: Longs, heads: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether the CRC of each body is that in the record; a body without bytes has none to check."""
    # Lengths of records that are not of the usual kind may be anything: a slice takes what there is.
    ends = body_at + heads["body"]
    spans = zip(body_at.tolist(), ends.tolist(), strict=True)
    actual = np.array([crc32(window[a:b]) for a, b in spans], np.int64)
    fits: NDArray[np.bool_] = (actual & 0x7FFF_FFFF) == heads["crc"]
    fits |= heads["body"] == 0
    return fits
