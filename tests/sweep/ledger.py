"""What was said to clients up to each moment: what a store has to hold after a crash, and what it must not hold.

In: sends and their replies, deleted topics, segments that may expire, and saves of state files, from the workload.
Out: :class:`Moment`, how far all of that had come when the power went.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from trio_mq.testing.disk import MemoryDisk, Operation


@attrs.define(eq=False)
class Sent:
    """One send. `bodies` are those of its messages, one unless it is a batch; `keys` those of its one message.

    `answered`, `log_offset` and `queue_offset` come with the reply; `end` is where the log ended behind it, and
    `durable_at_reply` whether the sender was told that the disk has it, `is_sure` whether it was told of no doubt.
    """

    number: int
    topic: str
    queue_id: int
    bodies: tuple[bytes, ...]
    keys: str | None = None
    log_offset: int = -1
    queue_offset: int = -1
    end: int = 0
    durable_at_reply: bool = False
    is_sure: bool = False


@attrs.frozen
class Moment:
    """A cut: the disk before one operation (none: after the last), and how much had been said by then.

    `sent` and `acked` are lengths of the ledger's lists, `durable` the log offset that the disk had for sure.
    `deleted` has, for each topic that was to be deleted by then, how many sends came before. `saves` has, for each
    state file, how many saves were complete and how many had begun.
    """

    number: int
    operation: Operation | None
    disk: MemoryDisk
    now_ms: int
    sent: int
    acked: int
    durable: int
    expired_to: int
    deleted: Mapping[str, int]
    saves: Mapping[str, tuple[int, int]]


@attrs.define(eq=False)
class Ledger:
    """Everything that was said, in order."""

    sent: list[Sent] = attrs.field(factory=list)
    acked: list[Sent] = attrs.field(factory=list)
    refused: list[Sent] = attrs.field(factory=list)
    deleted: dict[str, int] = attrs.field(factory=dict)
    expired_to: int = 0
    #: Contents of each state file, in the order of their saves; how many saves were begun and complete.
    saves: dict[str, list[bytes]] = attrs.field(factory=dict)
    complete: dict[str, int] = attrs.field(factory=dict)

    def progress(self) -> dict[str, tuple[int, int]]:
        """Complete and begun saves by file."""
        return {
            path: (self.complete.get(path, 0), len(saved)) for path, saved in self.saves.items()
        }

    def promised(self, moment: Moment, *, power_cut: bool) -> list[Sent]:
        """What has to be there at a moment: after a power cut, or after the mere end of the process."""
        return [
            sent
            for sent in self.acked[: moment.acked]
            if sent.log_offset >= moment.expired_to
            and sent.number >= moment.deleted.get(sent.topic, 0)
            and (not power_cut or sent.durable_at_reply or sent.end <= moment.durable)
        ]
