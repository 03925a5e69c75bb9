"""Members of one consumer group that subscribe differently.

In: the subscriptions in each client's heartbeat, and who has left. Out: a warning each time that a
disagreement appears or changes, and the list of them for the status. Used by
:mod:`trio_mq.broker.members`. The group gets the newest subscription for all of its members, as
with the peers, so that messages which only an older one wants are skipped for everybody.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from trio_mq.protocol.bodies import SubscriptionData

log = logging.getLogger("trio_mq.broker.members")

NOTHING: Final = "(nothing)"
"""Stands for the expression of a member that does not subscribe the topic at all."""


@attrs.frozen
class Conflict:
    """A topic that members of a group disagree about: client id to expression."""

    group: str
    topic: str
    expressions: Mapping[str, str]

    def text(self) -> str:
        """For the status: who wants what."""
        return f"{self.group} on {self.topic}: {_told(self)}"


class Conflicts:
    """What each client of each group said last."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, dict[str, str]]] = {}
        self._current: dict[str, dict[str, Conflict]] = {}

    @property
    def current(self) -> list[Conflict]:
        """All disagreements, by group and topic."""
        return [
            conflict
            for _, by_topic in sorted(self._current.items())
            for _, conflict in sorted(by_topic.items())
        ]

    def note(self, group: str, client_id: str, wanted: Iterable[SubscriptionData]) -> None:
        """A client tells its subscriptions."""
        clients = self._said.setdefault(group, {})
        said = {data.topic: _expression(data) for data in wanted}
        if clients.get(client_id) != said:
            clients[client_id] = said
            self._compare(group)

    def forget(self, group: str, client_id: str) -> None:
        """A client is gone."""
        clients = self._said.get(group, {})
        if clients.pop(client_id, None) is not None:
            self._compare(group)
        if not clients:
            self._said.pop(group, None)

    def _compare(self, group: str) -> None:
        clients = self._said[group]
        found: dict[str, Conflict] = {}
        for topic in {topic for said in clients.values() for topic in said}:
            expressions = {name: said.get(topic, NOTHING) for name, said in clients.items()}
            if len(set(expressions.values())) > 1:
                found[topic] = Conflict(group, topic, expressions)
        before = self._current.pop(group, {})
        for topic, conflict in found.items():
            if before.get(topic) != conflict:
                _warn(conflict)
        for topic in before.keys() - found.keys():
            log.info("group %s: its members agree about %s again", group, topic)
        if found:
            self._current[group] = found


def _expression(data: SubscriptionData) -> str:
    if data.expression_type in ("", "TAG"):
        return data.sub_string
    return f"{data.expression_type}: {data.sub_string}"


def _told(conflict: Conflict) -> str:
    return ", ".join(f"{name}: {text}" for name, text in sorted(conflict.expressions.items()))


def _warn(conflict: Conflict) -> None:
    log.warning(
        "group %s: its members subscribe %s differently (%s); the newest heartbeat counts for all "
        "of them, so messages are skipped; give all members of a group the same subscription",
        *(conflict.group, conflict.topic, _told(conflict)),
    )
