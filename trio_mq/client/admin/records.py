"""Records that brokers hand out for looking at, as messages.

In: concatenated records of a reply, and the broker's name. Out: :class:`.ReceivedMessage` values that nobody consumes.
Pure. Called by :mod:`.messages` and :mod:`.reading`. Source of the rules: Apache MessageDecoder.decodesBatch,
MQClientAPIImpl.processPullResponse (batches in one record).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import attrs

from trio_mq.client.messages import ReceivedMessage
from trio_mq.errors import ProtocolError
from trio_mq.protocol import record
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.message import split_batch
from trio_mq.protocol.record import StoredMessage

log = logging.getLogger("trio_mq.client")

_BATCH = MessageFlag.INNER_BATCH | MessageFlag.NEED_UNWRAP


def messages_in(data: bytes, broker_name: str) -> list[ReceivedMessage]:
    """All messages of a reply, those of batches one by one. BodyError when it holds something else."""
    found = []
    at = 0
    while at < len(data):
        stored = record.decode(data, at)
        at += stored.size
        for each in unwrapped(stored):
            queue = MessageQueue(each.topic, broker_name, each.queue_id)
            found.append(ReceivedMessage(each, queue, plain_body(each)))
    return found


def unwrapped(stored: StoredMessage) -> Iterator[StoredMessage]:
    """The record itself, or each message of the batch that it holds."""
    if not stored.sys_flag & MessageFlag.INNER_BATCH:
        yield stored
        return
    for number, item in enumerate(split_batch(stored.plain_body)):
        yield attrs.evolve(
            stored,
            flag=item.flag,
            body=item.body,
            properties=item.properties,
            queue_offset=stored.queue_offset + number,
            sys_flag=stored.sys_flag & ~int(_BATCH | MessageFlag.COMPRESSED),
        )


def plain_body(stored: StoredMessage) -> bytes:
    """The body as it was sent; as it is stored where it cannot be inflated, so that it hides no other message."""
    try:
        return stored.plain_body
    except ProtocolError as error:
        place = f"{stored.topic} queue {stored.queue_id} offset {stored.queue_offset}"
        log.warning("the body of the message at %s is shown as it is stored: %s", place, error)
        return stored.body
