"""Records that are packed ahead of time are those that an ordinary append writes."""

from __future__ import annotations

import pytest

from tests.store.stores import HOST, empty_store, send
from trio_mq.errors import StoreFull
from trio_mq.protocol.message import Host
from trio_mq.protocol.record import decode
from trio_mq.store.packed import Packed
from trio_mq.testing.clock import DEFAULT_START_MS
from trio_mq.testing.disk import MemoryDisk

NOW_MS = DEFAULT_START_MS + 5
PROPS = b"TAGS\x01TagA\x02K\x01v\x02"


@pytest.mark.parametrize("born", ["10.0.0.1", "fd00::1"])
@pytest.mark.parametrize("host", [HOST, Host("fd00::2", 10911)])
def test_both_ways_end_in_the_same_bytes(born, host):
    store = empty_store(MemoryDisk(), host=host)
    source, queue = store.queues.obtain("S", 0), store.queues.obtain("T", 1)
    born_host = Host(born, 4000)
    flag = 0x10 if born_host.is_v6 else 0
    send(
        store, source, b"body", born_host=born_host.packed, sys_flag=flag, flag=7, reconsume_times=2
    )
    store.commit()
    message = decode(store.log.read(1000, 0))
    packed = Packed.again(message, host, topic="T", queue_id=1, properties=PROPS)
    begin = store.append_packed(queue, packed, token=None, now_ms=NOW_MS)
    send(
        *(store, queue, b"body"),
        props=PROPS,
        born_host=born_host.packed,
        sys_flag=flag,
        flag=7,
        reconsume_times=2,
        now_ms=NOW_MS,
    )
    store.commit()
    one = decode(store.log.read(1000, begin))
    two = decode(store.log.read(1000, begin + one.size))
    assert (one.queue_offset, one.log_offset) == (0, begin)
    assert (two.queue_offset, two.log_offset) == (1, begin + one.size)
    assert one.born_timestamp_ms == message.born_timestamp_ms
    assert [
        (m.flag, m.sys_flag, m.body, m.body_crc, m.topic, m.properties, m.store_timestamp_ms)
        for m in (one, two)
    ] == 2 * [(7, two.sys_flag, b"body", message.body_crc, "T", PROPS, NOW_MS)]
    assert (one.born_host, one.store_host) == (two.born_host, two.store_host)
    entries = store.reader.entries(queue, 0, 2)
    assert [entry[2] for entry in entries] == 2 * [2_598_919]


def test_a_full_store_takes_none():
    store = empty_store(MemoryDisk())
    source, queue = store.queues.obtain("S", 0), store.queues.obtain("T", 1)
    send(store, source)
    store.commit()
    message = decode(store.log.read(1000, 0))
    packed = Packed.again(message, HOST, topic="T", queue_id=1, properties=b"")
    store.cleaner.refusal = "the disk is full"
    with pytest.raises(StoreFull, match="the disk is full"):
        store.append_packed(queue, packed, token=None, now_ms=NOW_MS)
    assert queue.next_offset == 0


def test_a_record_that_does_not_fit_begins_the_next_segment():
    store = empty_store(MemoryDisk())
    queue = store.queues.obtain("T", 1)
    send(store, queue, bytes(3900))
    store.commit()
    message = decode(store.log.read(4096, 0))
    packed = Packed.again(message, HOST, topic="T", queue_id=1, properties=b"")
    assert store.append_packed(queue, packed, token=None, now_ms=NOW_MS) == 4096
    store.commit()
    assert decode(store.log.read(4096, 4096)).queue_offset == 1
