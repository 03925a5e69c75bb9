"""Records that brokers hand out, as messages."""

from __future__ import annotations

import logging
import zlib

import pytest

from tests.client.admin.scripted import record
from trio_mq.client.admin.records import messages_in
from trio_mq.errors import BodyError, ClientError
from trio_mq.protocol import properties as props
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.message import BatchItem, join_batch

COMPRESSED, ZLIB, BATCH = 0x1, 0x300, 0x80 | 0x40


def test_records_one_after_another():
    data = record(3, b"a", TAGS="x", KEYS="k l") + record(4, b"b", queue_id=2)
    one, two = messages_in(data, "b1")
    assert (one.body, one.tags, one.keys, one.queue_offset) == (b"a", "x", ["k", "l"], 3)
    assert one.queue == MessageQueue("T", "b1", 0)
    assert two.queue == MessageQueue("T", "b1", 2)
    assert one.offset_message_id == "0A00000100002A9F" + f"{3000:016X}"
    assert messages_in(b"", "b1") == []


async def test_nothing_is_there_to_acknowledge():
    (message,) = messages_in(record(0), "b1")
    with pytest.raises(ClientError, match="looked up and not consumed"):
        await message.ack()


def test_bodies_are_as_they_were_sent(caplog):
    fine, broken = zlib.compress(b"plain"), b"no zlib"
    flags = COMPRESSED | ZLIB
    with caplog.at_level(logging.WARNING, "trio_mq.client"):
        one, two = messages_in(
            record(0, fine, sys_flag=flags) + record(1, broken, sys_flag=flags), "b1"
        )
    assert (one.body, two.body) == (b"plain", broken)
    assert "T queue 0 offset 1 is shown as it is stored" in caplog.text


@pytest.mark.parametrize("flags", [BATCH, BATCH | COMPRESSED | ZLIB])
def test_a_batch_in_one_record_is_taken_apart(flags):
    items = [BatchItem(n, b"body%d" % n, props.encode({"KEYS": f"k{n}"})) for n in range(3)]
    body = join_batch(items)
    stored = zlib.compress(body) if flags & COMPRESSED else body
    found = messages_in(record(10, stored, sys_flag=flags) + record(13), "b1")
    assert [(m.queue_offset, m.body) for m in found[:3]] == [
        (10, b"body0"),
        (11, b"body1"),
        (12, b"body2"),
    ]
    assert [(m.keys, m.record.flag, m.record.sys_flag) for m in found[:3]] == [
        (["k0"], 0, flags & 0x300), (["k1"], 1, flags & 0x300), (["k2"], 2, flags & 0x300)]  # fmt: skip
    assert found[3].queue_offset == 13


def test_what_is_no_record():
    with pytest.raises(BodyError, match="no record at byte"):
        messages_in(record(0) + b"nonsense", "b1")
