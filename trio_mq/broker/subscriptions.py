"""Tag expressions: which messages of a topic a consumer wants.

In: the text of a subscription, from a pull request or a heartbeat. Out: a :class:`TagFilter` that
decides by the number in a queue entry (broker) or by the exact text (client). Called by the pull
processor and the table of members. Rules: Apache FilterAPI, ExpressionType.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import attrs

from trio_mq.errors import RequestRefused
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.message import java_hash

EVERYTHING: Final = "*"
"""The expression that takes every message."""

TAG_TYPE: Final = "TAG"
"""Expression type of a tag subscription; null and empty mean the same."""

_CACHED_EXPRESSIONS: Final = 4096  # groups times topics of a busy broker; a miss costs microseconds

_LOW_32_BITS: Final = 0xFFFF_FFFF

_SQL_LIKE: Final = re.compile(r"[=<>'()]|\s(and|or|between|in|is)\s", re.IGNORECASE)


@attrs.frozen
class TagFilter:
    """A parsed tag expression. `codes` are Java hashes (signed 32 bit) of `tags`."""

    expression: str
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()

    @property
    def everything(self) -> bool:
        """Whether every message passes."""
        return not self.tags

    def matches_code(self, tags_code: int) -> bool:
        """Whether a message may pass, by the tags code of its queue entry.

        Only the low 32 bits count. Different tags can have one hash, so the client looks again at
        the text.
        """
        if not self.codes:
            return True
        low = tags_code & _LOW_32_BITS
        return (low - 0x1_0000_0000 if low & 0x8000_0000 else low) in self.codes

    def matches_tags(self, tags: str | None) -> bool:
        """Whether a message passes, by the text of its ``TAGS`` property."""
        return not self.tags or tags in self.tags


ALL_MESSAGES: Final = TagFilter(EVERYTHING)


@lru_cache(maxsize=_CACHED_EXPRESSIONS)
def parse_tags(expression: str | None) -> TagFilter:
    """The filter of a tag expression: tags separated by ``||``, blanks around them do not count.

    None, an empty text and ``*`` take everything. :class:`RequestRefused` with
    SUBSCRIPTION_PARSE_FAILED (23) if no tag is left.
    """
    if expression is None or expression in ("", EVERYTHING):
        return ALL_MESSAGES
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip()))
    if not tags:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"subscription {expression!r} names no tag; write 'TagA || TagB', or '*' for all",
        )
    return TagFilter(expression, tags, frozenset(map(java_hash, tags)))


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression type means tags (Apache ExpressionType.isTagType)."""
    return expression_type in (None, "", TAG_TYPE)


def looks_like_sql(expression: str) -> bool:
    """Whether a tag expression was probably meant as an SQL92 one; such a tag never matches."""
    return _SQL_LIKE.search(expression) is not None
