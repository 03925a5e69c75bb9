"""Subscriptions: what a group wants of a topic, as brokers are told, and the check that is made again in the client.

In: ``"*"``, ``"new || paid"``, :class:`Sql`. Out: :class:`Subscription` or ConfigError. Pure. Source of the rules:
Apache FilterAPI, SubscriptionData.
"""

from __future__ import annotations

import re

import attrs

from trio_mq.client.messages import ReceivedMessage
from trio_mq.errors import ConfigError
from trio_mq.protocol.bodies import SubscriptionData
from trio_mq.protocol.message import java_hash

EVERYTHING = "*"
#: Words and signs of a condition, which no tag has: whoever writes them means SQL.
_LOOKS_LIKE_SQL = re.compile(r"[=<>()']|\b(AND|OR|IN|IS|BETWEEN|NOT|LIKE)\b", re.IGNORECASE)


@attrs.frozen
class Sql:
    """A condition on properties: ``Sql("amount > 100 AND region IN ('eu', 'us')")``."""

    condition: str


@attrs.frozen
class Subscription:
    """One topic of a group. `tags` is empty when the client has nothing to check."""

    topic: str
    expression: str
    expression_type: str
    tags: frozenset[str]

    def as_data(self, version: int) -> SubscriptionData:
        """The form of heartbeats; `version` is a clock that rises with each change."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            tags_set=self.tags,
            code_set=frozenset(map(java_hash, self.tags)),
            sub_version=version,
            expression_type=self.expression_type,
        )

    def wants(self, message: ReceivedMessage) -> bool:
        """Whether the exact text of the tag matches: brokers compare hashes, which may collide."""
        return not self.tags or message.tags in self.tags


def parse(topic: str, wanted: object) -> Subscription:
    """What a user writes for one topic: text, :class:`Sql`, or None for everything."""
    if isinstance(wanted, Sql):
        if not wanted.condition.strip():
            raise ConfigError(f"subscription to {topic}: the SQL condition is empty")
        return Subscription(topic, wanted.condition, "SQL92", frozenset())
    if wanted is not None and not isinstance(wanted, str):
        kind = type(wanted).__name__
        raise ConfigError(f"subscription to {topic}: a tag expression is text, not {kind}")
    if not wanted or wanted.strip() == EVERYTHING:
        return Subscription(topic, EVERYTHING, "TAG", frozenset())
    tags = [tag.strip() for tag in wanted.split("||")]
    tags = [tag for tag in tags if tag]
    if not tags:
        raise ConfigError(
            f"subscription to {topic}: {wanted!r} holds no tag; write 'a || b' or '*'"
        )
    for tag in tags:
        if _LOOKS_LIKE_SQL.search(tag):
            raise ConfigError(
                f"subscription to {topic}: {wanted!r} looks like SQL and would match no tag; "
                f"for a condition on properties write trio_mq.Sql({wanted!r})"
            )
    return Subscription(topic, wanted, "TAG", frozenset(tags))


@attrs.frozen
class Subscribed:
    """A subscription that brokers are told of, with the time of its last change as its version."""

    subscription: Subscription
    version: int


class Subscriptions:
    """What one group of a client wants now, by topic (as on the wire)."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Subscribed] = {}

    def put(self, subscription: Subscription, now_ms: int) -> None:
        """Add a topic, or change what is wanted of it; the version rises, also when the clock does not."""
        old = self._by_topic.get(subscription.topic)
        version = now_ms if old is None else max(now_ms, old.version + 1)
        self._by_topic[subscription.topic] = Subscribed(subscription, version)

    def drop(self, topic: str) -> bool:
        """Forget a topic; whether it was there."""
        return self._by_topic.pop(topic, None) is not None

    def get(self, topic: str) -> Subscribed | None:
        """What is wanted of a topic, None for nothing."""
        return self._by_topic.get(topic)

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics, in the order of their subscription."""
        return tuple(self._by_topic)

    def data(self) -> tuple[SubscriptionData, ...]:
        """All of them, for heartbeats."""
        return tuple(one.subscription.as_data(one.version) for one in self._by_topic.values())
