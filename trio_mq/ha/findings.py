"""What a slave may find out about its log and its master's before it copies on.

In: nothing. Out: :class:`Finding`, made by :mod:`trio_mq.ha.continuity`, acted on by :mod:`trio_mq.ha.replica`.
"""

from __future__ import annotations

import enum

import attrs


class Verdict(enum.Enum):
    """How two logs lie to each other."""

    #: Ours is a part of the master's, or empty: copy on.
    CONTINUES = "continues"
    #: Nobody can say: copy on, with a warning.
    UNKNOWN = "unknown"
    #: The master does not answer questions. One that did before is asked again for a while; then, or if it never did:
    #: copy on, with a warning, and ask again.
    UNANSWERED = "unanswered"
    #: We have more than the master.
    AHEAD = "slave ahead"
    #: We have something else than the master.
    DIVERGED = "diverged"
    #: The master does not have any more what comes next here.
    TOO_OLD = "slave too old"
    #: We have to cut our log first, and the disk did not let us: what would be copied may not fit behind it.
    UNCUT = "cannot be cut"
    #: Its log has files of another size.
    FOREIGN = "other file sizes"


@attrs.frozen
class Finding:
    """A verdict, and a sentence with both offsets and what an operator can do."""

    verdict: Verdict
    text: str = ""
    #: Of a master that does not answer: whether it did before, so that it is worth to ask again before copying.
    answered_before: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether copying is right."""
        return self.verdict in (Verdict.CONTINUES, Verdict.UNKNOWN, Verdict.UNANSWERED)
