"""Names of topics with a meaning of their own: retry topics and dead letters of groups, the topic new ones are made by.

In: a topic, a group. Out: a topic. Used by the broker and by clients, so that both follow one rule. Source of the
rules: Apache MixAll, KeyBuilder.
"""

from __future__ import annotations

from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
#: The topic whose settings new topics get, and whose route says where they may be made (Apache: TopicValidator).
AUTO_CREATE_TOPIC: Final = "TBW102"


def retry_topic(group: str) -> str:
    """Where messages wait that a consumer of `group` failed on."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Where messages end that `group` failed on too often."""
    return DLQ_PREFIX + group


def pop_retry_topics(topic: str, group: str) -> tuple[str, str]:
    """The retry topics of pop consumers, both spellings (Apache KeyBuilder)."""
    return f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"
