"""Timers with Apache's Java producer and with hand-made frames: the typed face of ``java/Timers.java``.

In: what is to wait, and how long. Out: results with their recall handles.
"""

from __future__ import annotations

import base64
from typing import Final

import attrs

from .java_client import Producer
from .polling import now_ms
from .raw import RawClient, Reply, Sender, properties

RECALL: Final = 370
KINDS: Final = ("plain", "level", "ms", "sec", "at")
#: Those with a handle.
TIMED: Final = ("ms", "sec", "at")


@attrs.frozen
class Waits:
    """A message that was sent, and what takes it back."""

    body: str
    status: str
    msgId: str
    handle: str | None


@attrs.frozen
class Handle:
    """What is in a recall handle."""

    topic: str
    broker: str
    ms: int
    id: str

    @classmethod
    def of(cls, text: str) -> Handle:
        """Take a handle apart."""
        version, topic, broker, ms, unique_id = base64.urlsafe_b64decode(text).decode().split(" ")
        assert version == "v1"
        return cls(topic, broker, int(ms), unique_id)

    @property
    def text(self) -> str:
        """The handle again."""
        raw = f"v1 {self.topic} {self.broker} {self.ms} {self.id}"
        return base64.urlsafe_b64encode(raw.encode()).decode()


def five_kinds(producer: Producer, topic: str, delay_s: int, level: int) -> dict[str, Waits]:
    """A plain message, one with a level, and one of each kind of timer."""
    values = {"plain": 0, "level": level, "ms": 1000 * delay_s, "sec": delay_s}
    found = {}
    for kind in KINDS:
        value = now_ms() + 1000 * delay_s if kind == "at" else values[kind]
        found[kind] = send(producer, topic, kind, kind, value)
    return found


def send(producer: Producer, topic: str, body: str, kind: str, value: int) -> Waits:
    """Send one message with the Java client."""
    raw = producer.driver.call(
        "timers.send", producer=producer.name, topic=topic, body=body, kind=kind, value=value
    )
    assert raw["status"] == "SEND_OK"
    return Waits(body, **raw)


def recall(producer: Producer, topic: str, handle: str) -> str:
    """Take a message back with the Java client; its id."""
    return producer.driver.call("timers.recall", producer=producer.name, topic=topic, handle=handle)


def raw_recall(client: RawClient, topic: str, handle: str) -> Reply:
    """Take a message back by hand."""
    return client.call(RECALL, {"topic": topic, "recallHandle": handle, "producerGroup": "PG"})


def raw_send(
    client: RawClient, topic: str, body: str, unique_id: str | None = None, **props: object
) -> Reply:
    """Send a message by hand, with properties."""
    found = {name: str(value) for name, value in props.items()}
    if unique_id is not None:
        found["UNIQ_KEY"] = unique_id
    return Sender(client, topic).send_v2(body.encode(), 0, properties(found))
