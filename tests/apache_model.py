"""Where Apache's broker 5.4.0 ends with a damaged golden store when that is not where trio-mq ends.

In: a :class:`tests.damages.Damage`. Out: what Apache makes of it. ``tests/interop/test_damaged_golden.py`` holds this
table against Apache's broker itself; ``docs/explanation/damage-and-apache.md`` gives the reasons.
"""

from __future__ import annotations

import attrs

from tests.damage_model import Expected
from tests.damages import BY_NAME, END, HALF, MIDDLE, NORMAL, PREPARED, Damage, Queue, rows


@attrs.frozen
class Otherwise:
    """Where Apache's broker ends elsewhere: what is not given is as in trio-mq, and a queue of None is not there.

    `starts` although trio-mq refuses, or the other way round; `undamaged`: it ends as if nothing had happened.
    """

    log_end: int | None = None
    queues: dict[Queue, tuple[int, int] | None] = attrs.field(factory=dict)
    starts: bool = True
    undamaged: bool = False


def _half(end: int) -> dict[Queue, tuple[int, int] | None]:
    return {(HALF, 0): (0, end)}


#: Apache begins to read at the second file, so a queue that is lost begins with its first record there.
_LATE: dict[Queue, tuple[int, int] | None] = {
    (NORMAL, 0): (33, 52),
    (NORMAL, 1): (33, 52),
    (NORMAL, 2): (33, 51),
    (NORMAL, 3): (32, 51),
}
_CLEAN_END = rows("clean")[-1]["offset"] + rows("clean")[-1]["size"]

OTHERWISE: dict[str, Otherwise] = {
    # Records that Apache takes for whole, although their properties were not written.
    "torn-in-properties": Otherwise(END, _half(18)),
    "torn-at-last-byte": Otherwise(END, _half(18)),
    "torn-in-properties-after-clean-stop": Otherwise(_CLEAN_END, _half(27)),
    # Records at another place than they say.
    "flip-physicalOffset": Otherwise(END, _half(18)),
    "sign-physicalOffset": Otherwise(END, _half(18)),
    "old-record-behind-end": Otherwise(END + MIDDLE["size"]),
    "old-record-behind-end-after-clean-stop": Otherwise(_CLEAN_END + 396),
    "old-segment-again": Otherwise(PREPARED, _half(18)),
    "old-records-in-prepared-segment": Otherwise(200_667),
    # A queue with a negative number.
    "sign-queueId": Otherwise(queues={(HALF, -(1 << 31)): (16, 17)}),
    # Missing files of the log.
    "segment-last-missing": Otherwise(PREPARED, _half(18)),
    "segments-all-missing": Otherwise(0, dict.fromkeys(Expected.of(BY_NAME["nothing"]).queues)),
    # Missing queues: what lies before the file that Apache begins with is not made again.
    "queue-folder-missing": Otherwise(queues={(NORMAL, 1): (33, 52)}),
    "queue-folder-missing-after-clean-stop": Otherwise(queues={(NORMAL, 1): None}),
    "queue-file-empty": Otherwise(queues={(NORMAL, 1): (33, 52)}),
    "topic-folder-missing": Otherwise(queues=_LATE),
    "queues-all-missing": Otherwise(queues=_LATE),
    # Entries are put at the end of what is there, 33 places before the offsets of their messages.
    "queue-file-all-zeros": Otherwise(queues={(NORMAL, 1): (0, 19)}),
    "queue-file-short": Otherwise(starts=False),
    # An empty table instead of a refusal.
    "consumerOffset-and-backup-empty": Otherwise(undamaged=True),
    "subscriptionGroup-and-backup-empty": Otherwise(undamaged=True),
}


@attrs.frozen
class ApacheEnd:
    """How Apache's broker ends; without `starts` it does not."""

    starts: bool
    log_end: int = 0
    queues: dict[Queue, tuple[int, int]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, damage: Damage) -> ApacheEnd:
        """What Apache's broker makes of a damaged store."""
        otherwise = OTHERWISE.get(damage.name)
        if otherwise is None and damage.refused is not None:
            return cls(False)
        if otherwise is None:
            otherwise = Otherwise()
        if not otherwise.starts:
            return cls(False)
        base = Damage("", lambda files: None, damage.store) if otherwise.undamaged else damage
        expected = Expected.of(base)
        queues = {**expected.queues, **otherwise.queues}
        return cls(
            True,
            expected.log_end if otherwise.log_end is None else otherwise.log_end,
            {key: bounds for key, bounds in queues.items() if bounds is not None},
        )
