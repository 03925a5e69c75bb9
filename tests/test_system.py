"""The whole system: what starts in which order, what is told, and what is saved."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio

from tests.broker.support import messages, props, pull, request, send, texts
from tests.whole_system import (
    client,
    free_pair,
    parsed,
    put,
    route,
    running,
    settings_of,
)
from trio_mq.config import Address
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.headers.offset import QueryConsumerOffsetRequest, UpdateConsumerOffsetRequest
from trio_mq.protocol.message import Host, parse_offset_message_id
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk

# -- a start and a stop


async def test_c082_ports_of_0_are_told_and_are_in_the_route():
    disk = MemoryDisk()
    async with running(disk) as made:
        assert made.ready.ready_s < 5
        for address in (made.ready.nameserver, made.ready.broker):
            host, _, port = address.rpartition(":")
            assert (host, int(port) > 0) == ("127.0.0.1", True)
        assert disk.exists("/store/abort")
        data = await route(made.ready.nameserver, "TBW102")
        assert [b.broker_addrs for b in data.broker_datas] == [{0: made.broker}]
        async with client(made.broker) as peer:
            reply = await peer.ask(send("New", properties=props(KEYS="k")))
            assert reply.code == 0, reply.remark
            assert (await peer.ask(pull(0, "New"))).code == 0
        # the answer to the first send of a topic comes when clients find its route (C103)
        assert (await route(made.ready.nameserver, "New")).queue_datas[0].write_queue_nums == 4
    assert made.stopped_s < 1
    assert not disk.exists("/store/abort")
    async with running(disk) as again:
        assert again.ready.recovery.clean
        async with client(again.broker) as peer:
            assert texts(await peer.ask(pull(0, "New"))) == [b"hello"]


async def test_the_ready_line():
    async with running() as made:
        found = json.loads(made.ready.as_json())
        assert found.keys() == {"nameserver", "broker", "store", "recovery", "ready_s"}
        assert found["broker"] == made.broker
        assert found["recovery"]["clean"] is True
        text = made.ready.as_text()
    assert "\n" not in text
    for part in ("ready in", made.ready.nameserver, made.broker, "/store"):
        assert part in text
    async with running(settings=settings_of(enabled=False)) as alone:
        assert json.loads(alone.ready.as_json())["nameserver"] is None
        assert "name server" not in alone.ready.as_text()


async def test_the_fast_port_is_the_same_broker_two_below():
    port = free_pair()
    async with running(settings=settings_of({"listen_port": port})) as made:
        assert made.broker == f"127.0.0.1:{port}"
        async with client(made.broker, port - 2) as peer:
            assert (await peer.ask(send("T"))).code == 0
        async with client(made.broker) as peer:
            assert texts(await peer.ask(pull(0, "T"))) == [b"hello"]
    async with running(settings=settings_of({"listen_port": port, "fast_port": False})):
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", port - 2)


async def test_c086_a_name_is_in_the_route_and_its_address_in_message_ids():
    port = free_pair()
    settings = settings_of(
        {"advertise_host": "localhost", "advertise_port": 12_345, "listen_port": port}
    )
    async with running(settings=settings) as made:
        assert made.broker == "localhost:12345"
        data = await route(made.ready.nameserver, "TBW102")
        assert data.broker_datas[0].broker_addrs == {0: "localhost:12345"}
        async with client("127.0.0.1:0", port) as peer:
            reply = await peer.ask(send("T"))
            host, offset = parse_offset_message_id(reply.ext["msgId"])
            assert host == Host("127.0.0.1", 12_345)
            view = request(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(offset)})
            assert texts(await peer.ask(view)) == [b"hello"]


def listening_ports():
    """Ports that this process listens on."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = []
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


async def test_ipv6():
    settings = settings_of({"listen_host": "::1"}, listen=Address("::1", 0))
    async with running(settings=settings) as made:
        assert made.broker.startswith("[::1]:")
        data = await route(made.ready.nameserver, "TBW102")
        assert data.broker_datas[0].broker_addrs == {0: made.broker}
        async with client(made.broker) as peer:
            reply = await peer.ask(send("T"))
            assert parse_offset_message_id(reply.ext["msgId"])[0].ip == "::1"


async def test_registration_at_other_name_servers():
    async with running() as other:
        more = {"nameservers": (parsed(other.ready.nameserver),), "broker_name": "b-b"}
        async with running(MemoryDisk(), settings_of(more)) as made:
            await trio.sleep(0.3)
            names = {
                b.broker_name for b in (await route(other.ready.nameserver, "TBW102")).broker_datas
            }
            assert names == {"b-a", "b-b"}
            assert len((await route(made.ready.nameserver, "TBW102")).broker_datas) == 1
        names = {
            b.broker_name for b in (await route(other.ready.nameserver, "TBW102")).broker_datas
        }
        assert names == {"b-a"}, "whoever leaves says goodbye"


async def test_sockets_are_free_after_a_stop():
    before = listening_ports()
    async with running() as made:
        ports = set(listening_ports()) - set(before)
        assert len(ports) == 3
        idle = await trio.open_tcp_stream("127.0.0.1", parsed(made.broker).port)
    assert await idle.receive_some() == b""
    await idle.aclose()
    assert set(listening_ports()) <= set(before)


async def test_offsets_and_topics_are_saved_by_a_stop():
    disk = MemoryDisk()
    async with running(disk) as made, client(made.broker) as peer:
        assert (await peer.ask(send("T"))).code == 0
        await peer.ask(pull(1, "T", sys_flag=5, commit_offset=1))
    saved = json.loads(
        disk.open("/store/config/consumerOffset.json").read(9_999, 0).replace(b"{0:1}", b"1")
    )
    assert saved["offsetTable"] == {"T@CG": 1}


async def test_c052_progress_ahead_of_the_log_is_taken_back_and_new_messages_come(caplog):
    """C052: a group was at 20, the log lost all from 15 on; the ten that are sent then are delivered."""
    disk = MemoryDisk()
    async with running(disk) as made, client(made.broker) as peer:
        ids = [(await peer.ask(send("T", b"%d" % n))).ext["msgId"] for n in range(20)]
        await peer.ask(pull(0, "T"))  # the group comes to be
        commit = UpdateConsumerOffsetRequest("CG", "T", 0, 20)
        assert (await peer.ask(request(RequestCode.UPDATE_CONSUMER_OFFSET, commit))).code == 0
    log_offset = parse_offset_message_id(ids[15])[1]
    put(disk, "/store/abort", b"1")
    disk.remove("/store/checkpoint")
    file = disk.open("/store/commitlog/" + "0" * 20)
    file.write(b"\xff" * 8, log_offset)
    file.close()
    async with running(disk) as made, client(made.broker) as peer:
        assert made.ready.recovery.log_end == log_offset
        (warning,) = [m for m in caplog.messages if "group CG" in m and "T" in m]
        assert "20" in warning
        assert "15" in warning
        asked = request(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequest("CG", "T", 0))
        offset = int((await peer.ask(asked)).ext["offset"])
        assert offset == 15
        for n in range(10):
            assert (await peer.ask(send("T", b"new %d" % n))).code == 0
        assert texts(await peer.ask(pull(offset, "T"))) == [b"new %d" % n for n in range(10)]
    saved = disk.open("/store/config/consumerOffset.json").read(9_999, 0)
    assert b'"T@CG":{0:15}' in saved


async def test_c052_progress_in_a_queue_that_lost_everything_begins_at_0():
    """C052: the power went before anything of the queue was on the disk, but the offsets were; topics stay as told."""
    disk = MemoryDisk()
    disk.make_dirs("/store/config")
    content = {
        "topics.json": b'{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":2,"writeQueueNums":2,"perm":6}}}',
        "consumerOffset.json": b'{"offsetTable":{"T@CG":{0:500,1:0,9:7},"Unknown@CG":{0:500}}}',
    }
    for name, data in content.items():
        put(disk, f"/store/config/{name}", data)
    async with running(disk) as made, client(made.broker) as peer:
        await peer.ask(pull(0, "T"))
        for topic, queue_id, expected in (("T", 0, 0), ("T", 1, 0), ("T", 9, 7)):
            header = QueryConsumerOffsetRequest("CG", topic, queue_id)
            reply = await peer.ask(request(RequestCode.QUERY_CONSUMER_OFFSET, header))
            assert reply.ext == {"offset": str(expected)}
        assert (await peer.ask(send("T", b"first"))).code == 0
        assert texts(await peer.ask(pull(0, "T"))) == [b"first"]
    assert b'"Unknown@CG":{0:500}' in disk.open("/store/config/consumerOffset.json").read(9_999, 0)


async def test_c074_a_clock_that_was_25_years_ahead():
    """C074: started in the future, then set right: topics are registered, messages taken, and after a restart, too."""
    disk, clock = MemoryDisk(), ManualClock()
    present_ms = clock.now_ms()
    clock.set(present_ms + 25 * 365 * 86_400_000)
    async with running(disk, clock=clock) as made, client(made.broker) as peer:
        assert (await peer.ask(send("Future"))).code == 0
        clock.set(present_ms)
        assert (await peer.ask(send("Present"))).code == 0
        for topic in ("Future", "Present"):
            data = await route(made.ready.nameserver, topic)
            assert [b.broker_addrs for b in data.broker_datas] == [{0: made.broker}]
        assert (await peer.ask(send("Future", b"later"))).code == 0
        got = messages(await peer.ask(pull(0, "Future")))
        assert [m.body for m in got] == [b"hello", b"later"]
        assert got[0].store_timestamp_ms <= got[1].store_timestamp_ms  # case C076
    clock.advance(1000)
    async with running(disk, clock=clock) as made, client(made.broker) as peer:
        assert (await peer.ask(send("Again"))).code == 0
        for topic in ("Future", "Present", "Again"):
            assert (await route(made.ready.nameserver, topic)).broker_datas
