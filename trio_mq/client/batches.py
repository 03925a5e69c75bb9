"""Batches: which messages may go together, and how many fit into one request.

In: messages of one topic. Out: lists of them that fit, or LocalProtocolError with the reason. Called by
:mod:`.sending`. Pure. Source of the rules: Apache MessageBatch.generateFromList, and the splitting of its examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from trio_mq.client.messages import Message
from trio_mq.errors import LocalProtocolError
from trio_mq.protocol import properties as props
from trio_mq.protocol.message import BatchItem
from trio_mq.protocol.topics import RETRY_PREFIX

#: Lengths and numbers around body and properties of one item.
ITEM_OVERHEAD_BYTES: Final = 22

T = TypeVar("T")


def check_batch(messages: Sequence[Message]) -> str:
    """The topic of a batch; LocalProtocolError says which message does not fit to the others, and why.

    Brokers would take a delay or a half message in a batch as an ordinary one, so nothing of that is sent at all.
    """
    if not messages:
        raise LocalProtocolError("a batch holds no message; send at least one")
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise LocalProtocolError(
            f"topic {first.topic}: messages to be retried cannot go in a batch; send them one by one"
        )
    for number, message in enumerate(messages):
        why = _unfit(message, first)
        if why:
            raise LocalProtocolError(f"batch item {number} of topic {message.topic}: {why}")
    return first.topic


def _unfit(message: Message, first: Message) -> str | None:
    if message.topic != first.topic:
        return f"item 0 has topic {first.topic}; send one batch for each topic"
    if message.delayed or props.TIMER_DELAY_SEC in message.properties:
        return "brokers ignore delays in batches; send delayed messages one by one"
    if message.properties.get(props.TRAN_MSG, "").lower() == "true":
        return "brokers know no transactions in batches; use send_in_transaction"
    if message.wait_store_ok != first.wait_store_ok:
        return "item 0 has another wait_store_ok; send one batch for each value"
    if not message.body:
        return "its body is empty; brokers refuse that"
    return None


def size_bytes(item: BatchItem) -> int:
    """What one item takes of a batch body."""
    return ITEM_OVERHEAD_BYTES + len(item.body) + len(item.properties)


def split(items: Iterable[BatchItem], max_bytes: int) -> Iterator[list[BatchItem]]:
    """The items in order, in batches of at most `max_bytes`; LocalProtocolError for one that is larger alone."""
    batch: list[BatchItem] = []
    size = 0
    for number, item in enumerate(items):
        its_size = size_bytes(item)
        if its_size > max_bytes:
            raise LocalProtocolError(
                f"batch item {number} takes {its_size} bytes, {max_bytes} are the most (max_message_bytes)"
            )
        if batch and size + its_size > max_bytes:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += its_size
    if batch:
        yield batch
