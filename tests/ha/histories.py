"""Logs that agree up to some point, and masters that answer questions about them as Apache's do."""

from __future__ import annotations

import json

import attrs

from tests.ha.copies import Original
from tests.recovery.stores import World
from trio_mq.errors import PeerUnavailable
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.testing.disk import MemoryDisk

NOT_SUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def history(branch: str = "a", *, common: int = 40, count: int = 60, **changes) -> Original:
    """A log whose first `common` messages are those of every other branch; the rest has the same lengths."""
    world = World.make(MemoryDisk(), "/master", **changes)
    async with world.life() as store:
        for n in range(count):
            body = f"{'common' if n < common else branch:>8} {n:04}".encode() * (1 + n % 5)
            world.send(store, body, "T", n % 3, keys=f"k{n}")
            store.commit()
        return Original.of(store)


@attrs.define
class Asked:
    """A master that is asked: its log goes from `start` to `end`, and ended at `run` when it was started."""

    log: Original
    run: int = 0
    start: int = 0
    end: int = -1
    segment_bytes: int = 4096
    address: str = "master:10912"
    is_dead: bool = False
    #: Requests that it does not know, and answers that it gives in place of its own.
    unknown: tuple[RequestCode, ...] = ()
    instead: dict[RequestCode, Command] = attrs.field(factory=dict)
    asked: list[int] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        if self.end < 0:
            self.end = self.log.end

    async def __call__(self, command: Command) -> Command:
        if self.is_dead:
            raise PeerUnavailable("master:10911: no answer within 3 s")
        self.asked.append(command.code)
        code = RequestCode(command.code)
        if code in self.instead:
            return self.instead[code]
        if code in self.unknown:
            return Command(NOT_SUPPORTED, remark="no such code")
        match code:
            case RequestCode.EXCHANGE_BROKER_HA_INFO:
                return Command(
                    0, {"masterFlushOffset": str(self.run), "masterHaAddress": self.address}
                )
            case RequestCode.VIEW_MESSAGE_BY_ID:
                return self._view(int(command.ext["offset"]))
            case RequestCode.GET_BROKER_HA_STATUS:
                return Command(0, body=json.dumps({"masterCommitLogMaxOffset": self.end}).encode())
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                table = {"commitLogMinOffset": str(self.start), "commitLogMaxOffset": str(self.end)}
                return Command(0, body=json.dumps({"table": table}).encode())
            case RequestCode.GET_BROKER_CONFIG:
                text = f"brokerName=b\nmappedFileSizeCommitLog={self.segment_bytes}\n"
                return Command(0, body=text.encode())
        raise AssertionError(code)

    def _view(self, offset: int) -> Command:
        """As Apache: the four bytes there are a length, whatever they are."""
        missing = Command(ResponseCode.SYSTEM_ERROR, remark="can not find message by the offset")
        if not self.start <= offset <= self.end - 4:
            return missing
        size = int.from_bytes(self.log.piece(offset, offset + 4), "big", signed=True)
        file_end = offset - offset % self.segment_bytes + self.segment_bytes
        if size < 0 or offset + size > min(self.end, file_end):
            return missing
        return Command(0, body=self.log.piece(offset, offset + size))
