"""Attributes of topics and groups: the text that changes them, and which ones there are.

In: text like ``+queue.type=BatchCQ,-reserve.time`` and the attributes so far. Out: the attributes
afterwards. Called by the tables of topics and groups. Rules: Apache AttributeParser, AttributeUtil,
TopicAttributes and SubscriptionGroupAttributes of 5.4.0; errors have the peers' code 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import attrs

from trio_mq.errors import RequestRefused
from trio_mq.protocol.codes import ResponseCode

QUEUE_TYPE: Final = "queue.type"
MESSAGE_TYPE: Final = "message.type"

_LONG_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")


@attrs.frozen
class Attribute:
    """A known attribute: some texts, or whole numbers from `least` to `most`."""

    name: str
    changeable: bool
    texts: tuple[str, ...] = ()
    least: int = 0
    most: int = 0

    def check(self, value: str) -> None:
        """Refuse a value that the attribute cannot have."""
        if self.texts:
            if value not in self.texts:
                raise _refused(f"attribute {self.name}={value}: use one of {', '.join(self.texts)}")
            return
        if not _NUMBER.fullmatch(value) or not self.least <= int(value) <= self.most:
            raise _refused(
                f"attribute {self.name}={value}: use a number from {self.least} to {self.most}"
            )


TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    attribute.name: attribute
    for attribute in (
        Attribute(QUEUE_TYPE, False, ("SimpleCQ", "BatchCQ")),
        Attribute("cleanup.policy", False, ("DELETE", "COMPACTION")),
        Attribute(
            MESSAGE_TYPE,
            True,
            ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"),
        ),
        Attribute("reserve.time", True, least=-1, most=_LONG_MAX),
    )
}

GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "priority.factor": Attribute("priority.factor", True, least=0, most=100)
}


def parse(text: str | None) -> dict[str, str]:
    """The changes in a text: ``+name`` to its new value, ``-name`` to an empty text."""
    changes: dict[str, str] = {}
    for item in (text or "").rstrip(",").split(",") if text else ():
        name, equals, value = item.partition("=")
        if name in changes:
            raise _refused(f"attribute {name!r} is there twice")
        added = name.startswith("+") and value
        removed = name.startswith("-") and not equals
        if not added and not removed:
            raise _refused(f"attribute change {item!r}: write +name=value or -name")
        changes[name] = value
    return changes


def change(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """The attributes after `changes` (see :func:`parse`); `current` is None at creation.

    An attribute that is fixed after creation may be set again to the value it has.
    """
    result = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if sign not in "+-" or not name or "+" in name or "-" in name:
            raise _refused(f"attribute change {signed!r}: write +name=value or -name")
        if name in seen:
            raise _refused(f"attribute {name} is changed twice")
        seen.add(name)
        attribute = known.get(name)
        if attribute is None:
            raise _refused(f"attribute {name} is unknown; known are {', '.join(known)}")
        if sign == "-":
            if current is None:
                raise _refused(f"attribute {name} cannot be removed before it exists")
            if name not in current:
                raise _refused(f"attribute {name} is not set, so it cannot be removed")
        elif value == result.get(name):
            continue
        else:
            attribute.check(value)
        if current is not None and not attribute.changeable:
            raise _refused(f"attribute {name} is fixed once the topic exists")
        if sign == "-":
            del result[name]
        else:
            result[name] = value
    return result


def _refused(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, text)
