"""Records that were there before this process began: what a disk did to them meanwhile is not passed on in silence.

In: bytes of records on their way to a consumer. Out: which of them a client can read, and one line in the log for
each that is damaged (case C020). A clean start does not read the log, so nobody else would notice. Called by
:class:`trio_mq.store.reader.Reader`. Source of the checks: Apache CommitLog.checkMessageAndReturnSize.

A record whose body has another checksum is still handed out, as with Apache: it may be good for something, and the
peers do not check. One whose fields do not fit together is left out: a client would fail on it, and miss what
follows in the same answer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from struct import Struct
from typing import Final

from trio_mq.protocol.layout import MAGIC_V1
from trio_mq.protocol.verdict import Damaged, Torn, Whole, body_crc, check
from trio_mq.store.queues import BaseQueue

log = logging.getLogger("trio_mq.store.oldrecords")

#: Size, magic, body checksum, log offset, flags, length of the body, with IPv4 hosts.
_HEAD: Final = Struct(">iii16xqi44xi")
#: Behind the body: the lengths of topic and properties.
_TAIL_BYTES: Final = 3
_V6_FLAGS: Final = 0x30
#: Damaged records that are remembered, so that each is told once.
_TOLD: Final = 1000


class OldRecords:
    """Looks at records that begin before the log offset `before`."""

    def __init__(self, before: int) -> None:
        self.before = before
        self._told: set[int] = set()
        self._holes: set[tuple[str, int]] = set()

    @property
    def damaged(self) -> int:
        """How many damaged records were met so far."""
        return len(self._told)

    @property
    def holed(self) -> bool:
        """Whether a queue has a hole that only a careful start finds."""
        return bool(self._holes)

    def all_good(self, data: bytes, sizes: Sequence[int], begin: int) -> bool:
        """Whether `data`, records of these sizes from log offset `begin` on, is what was once written."""
        at = 0
        for size in sizes:
            if not _is_good(data, at, size, begin + at):
                return False
            at += size
        return True

    def readable(
        self,
        data: bytes,
        places: Sequence[tuple[int, int]],
        queue: BaseQueue,
        numbers: Sequence[int],
    ) -> list[bool]:
        """Which records of `data`, at these (log offset, size), a client can read; tells of damaged ones.

        `numbers` are their offsets in the queue.
        """
        found: list[bool] = []
        at = 0
        for (log_offset, size), number in zip(places, numbers, strict=True):
            good = log_offset >= self.before or _is_good(data, at, size, log_offset)
            found.append(good or self._look(data, at, size, log_offset, queue, number))
            at += size
        return found

    def hole(self, queue: BaseQueue, number: int) -> None:
        """A queue has an entry of zeros: tell it once (case C025)."""
        name = queue.topic, queue.queue_id
        if name not in self._holes:
            self._holes.add(name)
            log.error(
                "queue %s/%d has no entry at offset %d, so consumers miss messages that may be in the log; the next "
                "start looks at everything and fills the hole",
                *(*name, number),
            )

    def _look(
        self, data: bytes, at: int, size: int, log_offset: int, queue: BaseQueue, number: int
    ) -> bool:
        """Whether a record that is not good is readable, and a line about it."""
        verdict = check(data, at, at + size, expected_offset=log_offset)
        if isinstance(verdict, Whole) and verdict.size == size:
            return True
        if isinstance(verdict, (Torn, Damaged)):
            reason = verdict.reason
        else:
            reason = "what lies there is not what its entry points to"
        bare = check(data, at, at + size, check_crc=False, expected_offset=log_offset, strict=False)
        readable = isinstance(bare, Whole) and bare.size == size
        if log_offset not in self._told and len(self._told) < _TOLD:
            self._told.add(log_offset)
            log.error(
                "the record at log offset %d (%s queue %d, offset %d) is damaged: %s; %s",
                *(log_offset, queue.topic, queue.queue_id, number),
                reason,
                "consumers get it as it is" if readable else "consumers do not get it",
            )
        return readable


def _is_good(data: bytes, at: int, size: int, log_offset: int) -> bool:
    """A quick look that is right when it says yes. IPv6 hosts and long topics always need the other one."""
    end = at + size
    if size < _HEAD.size + _TAIL_BYTES or end > len(data):
        return False
    claimed, magic, crc, offset, flags, body = _HEAD.unpack_from(data, at)
    if claimed != size or magic != MAGIC_V1 or offset != log_offset or flags & _V6_FLAGS:
        return False
    body_at = at + _HEAD.size
    topic_at = body_at + body
    if not 0 <= body <= size - _HEAD.size - _TAIL_BYTES:
        return False
    props_at = topic_at + 1 + data[topic_at]
    props = int.from_bytes(data[props_at : props_at + 2], "big")
    if props_at + 2 + props != end:
        return False
    return bool(body_crc(data[body_at:topic_at]) == crc)
