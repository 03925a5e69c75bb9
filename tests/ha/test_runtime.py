"""What is answered about replication: as the peers' tools read it, and in words."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.broker.support import FakePeer
from tests.ha.slaves import Master, master
from trio_mq.broker.follow import ItemState, ItemView
from trio_mq.config.ha import BrokerRole, HASettings
from trio_mq.ha.replica import ReplicaView
from trio_mq.ha.runtime import SHOWN, HARuntime, SlaveSide, tables_text
from trio_mq.ha.states import LinkState
from trio_mq.net.requests import Call, Reply, RequestTable
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import HARuntimeInfo
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers import ExchangeHAInfoReply
from trio_mq.testing.clock import DEFAULT_START_MS, ManualClock

COPYING = ReplicaView(
    master="10.0.0.1:10912",
    state=LinkState.TRANSFER,
    reason="from 10.0.0.1:10912, offset 0",
    max_offset=700,
    bytes_per_s=1234,
    read_age_s=2.5,
    write_age_s=None,
    reconnects=3,
    last_error="",
)


class Asked:
    """The requests of one broker, and what it was told to follow."""

    def __init__(
        self, m: Master, *, view: ReplicaView | None = None, master_end: int | None = None
    ) -> None:
        self.adopted: list[tuple[str, str | None]] = []
        self.view = view
        slave = None
        if view is not None:
            slave = SlaveSide(
                lambda: self.view, lambda *told: self.adopted.append(told), lambda: master_end
            )
        role = BrokerRole.ASYNC_MASTER if view is None else BrokerRole.SLAVE
        self.runtime = HARuntime(
            HASettings(role=role),
            m.store,
            m.primary,
            ManualClock(),
            ha_address="192.168.1.5:10912",
            address="192.168.1.5:10911",
            slave=slave,
        )
        self.table = RequestTable("broker")
        self.runtime.fill(self.table)

    def ask(self, code: int, **ext: str) -> Reply:
        reply = self.table.process(Call(FakePeer(), Command(code, ext), 0))
        assert isinstance(reply, Reply)
        return reply

    def status(self) -> dict[str, Any]:
        reply = self.ask(RequestCode.GET_BROKER_HA_STATUS)
        assert reply.code == ResponseCode.SUCCESS
        return json.loads(reply.body)


# -- 907 -------------------------------------------------------------------------------------------------------


async def test_the_status_of_a_master_has_the_names_of_the_peer(autojump_clock) -> None:
    async with master() as m:
        end = m.put(10)
        slave = await m.connect("10.0.0.2", report=100)
        await slave.until(lambda: slave.end == end)
        await trio.sleep(2)
        status = Asked(m).status()
        rate = m.view(slave).transferred_per_s
        assert rate > 0
        assert status["haConnectionInfo"] == [
            {
                "addr": str(slave.peer),
                "slaveAckOffset": 100,
                "diff": end - 100,
                "inSync": True,
                "transferredByteInSecond": rate,
                "transferFromWhere": 100,
                "slaveAhead": False,
                "slaveTooOld": False,
            }
        ]
        assert status["master"] is True
        assert status["masterCommitLogMaxOffset"] == end
        assert status["inSyncSlaveNums"] == 1, "the master itself is not a slave"
        assert set(status) == {
            "master",
            "masterCommitLogMaxOffset",
            "inSyncSlaveNums",
            "haConnectionInfo",
            "haClientRuntimeInfo",
        }


async def test_the_status_of_a_lonely_master(autojump_clock) -> None:
    async with master() as m:
        m.put()
        status = Asked(m).status()
        assert status["haConnectionInfo"] == []
        assert status["inSyncSlaveNums"] == 0


async def test_c062_a_slave_that_is_ahead_has_no_negative_difference(autojump_clock) -> None:
    async with master() as m:
        end = m.put(10)
        slave = await m.connect("10.0.0.2", report=end + 4096)
        await slave.until(lambda: slave.closed_s is not None)
        status = Asked(m).status()
        (one,) = status["haConnectionInfo"]
        assert (one["slaveAhead"], one["slaveAckOffset"], one["diff"]) == (True, end + 4096, 0)
        assert not one["inSync"]
        assert status["inSyncSlaveNums"] == 0
        assert Asked(m).runtime.rows()["haSlavesAhead"] == "refused 1 times"


async def test_the_status_of_a_slave_has_the_names_of_the_peer(autojump_clock) -> None:
    async with master() as m:
        status = Asked(m, view=COPYING).status()
        assert status["master"] is False
        assert status["haClientRuntimeInfo"] == {
            "masterAddr": "10.0.0.1:10912",
            "transferredByteInSecond": 1234,
            "maxOffset": 700,
            "lastReadTimestamp": DEFAULT_START_MS - 2500,
            "lastWriteTimestamp": 0,
            "masterFlushOffset": 0,
            "activated": True,
        }


async def test_a_slave_without_a_master_is_not_active(autojump_clock) -> None:
    async with master() as m:
        view = attrs.evolve(COPYING, state=LinkState.READY, master=None)
        told = Asked(m, view=view).status()["haClientRuntimeInfo"]
        assert told["activated"] is False
        assert told.get("masterAddr") is None


def test_what_the_peer_sends_is_read() -> None:
    """As Apache 5.4.0 writes it: no fields of ours."""
    text = (
        b'{"haClientRuntimeInfo":{"activated":false,"lastReadTimestamp":0,"lastWriteTimestamp":0,'
        b'"masterFlushOffset":0,"maxOffset":0,"transferredByteInSecond":0},"haConnectionInfo":['
        b'{"addr":"127.0.0.1:33912","diff":0,"inSync":true,"slaveAckOffset":1510,'
        b'"transferFromWhere":0,"transferredByteInSecond":24}],"inSyncSlaveNums":1,"master":true,'
        b'"masterCommitLogMaxOffset":1510}'
    )
    info = bodies.decode(HARuntimeInfo, text)
    assert info.master_commit_log_max_offset == 1510
    (one,) = info.ha_connection_info
    assert (one.addr, one.slave_ack_offset, one.slave_ahead) == ("127.0.0.1:33912", 1510, False)


# -- 906, 908 --------------------------------------------------------------------------------------------------


async def test_a_master_tells_its_addresses_and_where_its_run_began(autojump_clock) -> None:
    async with master() as m:
        asked = Asked(m)
        m.put(10)
        for _ in range(2):
            reply = asked.ask(RequestCode.EXCHANGE_BROKER_HA_INFO)
            assert headers.encode(reply.header) == {
                "masterHaAddress": "192.168.1.5:10912",
                "masterFlushOffset": "0",
                "masterAddress": "192.168.1.5:10911",
            }


async def test_the_beginning_of_a_run_is_the_end_of_the_log_then(autojump_clock) -> None:
    async with master() as m:
        end = m.put(10)
        from trio_mq.ha.primary import Primary

        m.primary = Primary(m.store, HASettings())  # as after a start on that store
        m.put(5)
        header = Asked(m).ask(RequestCode.EXCHANGE_BROKER_HA_INFO).header
        assert isinstance(header, ExchangeHAInfoReply)
        assert header.master_flush_offset == end


async def test_a_slave_follows_whom_it_is_told(autojump_clock) -> None:
    async with master() as m:
        asked = Asked(m, view=COPYING)
        reply = asked.ask(
            RequestCode.EXCHANGE_BROKER_HA_INFO,
            masterHaAddress="10.0.0.7:10912",
            masterAddress="10.0.0.7:10911",
            masterFlushOffset="5",
        )
        assert reply.code == ResponseCode.SUCCESS
        asked.ask(RequestCode.EXCHANGE_BROKER_HA_INFO, masterHaAddress="10.0.0.8:10912")
        assert asked.adopted == [
            ("10.0.0.7:10912", "10.0.0.7:10911"),
            ("10.0.0.8:10912", None),
        ]


async def test_a_slave_has_no_addresses_of_a_master_to_tell(autojump_clock) -> None:
    async with master() as m:
        reply = Asked(m, view=COPYING).ask(RequestCode.EXCHANGE_BROKER_HA_INFO)
        assert (reply.code, reply.header) == (ResponseCode.SUCCESS, None)


async def test_a_master_follows_nobody(autojump_clock, caplog) -> None:
    async with master() as m:
        reply = Asked(m).ask(RequestCode.EXCHANGE_BROKER_HA_INFO, masterHaAddress="10.0.0.7:10912")
        assert reply.code == ResponseCode.SUCCESS
        assert "10.0.0.7:10912, but this broker is a master" in caplog.text


@pytest.mark.parametrize(("view", "kept"), [(COPYING, 4711), (None, 0)])
async def test_only_a_slave_notes_what_its_master_has_flushed(view, kept, autojump_clock) -> None:
    async with master() as m:
        reply = Asked(m, view=view).ask(
            RequestCode.RESET_MASTER_FLUSH_OFFSET, masterFlushOffset="4711"
        )
        assert reply.code == ResponseCode.SUCCESS
        assert m.store.parts.checkpoint.value.master_flushed_offset == kept


async def test_nonsense_is_refused(autojump_clock) -> None:
    async with master() as m:
        reply = Asked(m).ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, masterFlushOffset="x")
        assert reply.code == ResponseCode.SYSTEM_ERROR
        reply = Asked(m).ask(RequestCode.EXCHANGE_BROKER_HA_INFO, masterFlushOffset="x")
        assert reply.code == ResponseCode.SYSTEM_ERROR


# -- words -----------------------------------------------------------------------------------------------------


async def test_c068_a_master_without_slaves_says_so(autojump_clock) -> None:
    async with master() as m:
        assert Asked(m).runtime.rows() == {"brokerRole": "ASYNC_MASTER", "haSlaves": "none"}


async def test_the_rows_of_a_master_name_each_slave(autojump_clock) -> None:
    async with master(max_gap_not_in_sync=1000) as m:
        end = m.put(30)
        near = await m.connect("10.0.0.2", report=end - 7)
        far = await m.connect("10.0.0.3", report=1)
        mute = await m.connect("10.0.0.4")
        ahead = await m.connect("10.0.0.5", report=end + 1)
        await ahead.until(lambda: ahead.closed_s is not None)
        assert Asked(m).runtime.rows()["haSlaves"] == (
            f"3 connected, 1 in sync: {near.peer} 7 bytes behind; "
            f"{far.peer} {end - 1} bytes behind, not in sync; {mute.peer} has reported nothing yet; "
            f"{ahead.peer} is refused: it is ahead with {end + 1}"
        )


async def test_a_slave_that_is_too_old_says_what_to_do(autojump_clock) -> None:
    async with master() as m:
        m.put(60)
        m.store.log.segments.drop_segment(0)
        await m.connect("10.0.0.2", report=100)
        await wait_all_tasks_blocked()
        assert "empty its store" in Asked(m).runtime.rows()["haSlaves"]


async def test_many_slaves_are_not_all_named(autojump_clock) -> None:
    async with master() as m:
        end = m.put()
        for number in range(SHOWN + 3):
            await m.connect(f"10.0.0.{number}", report=end)
        await wait_all_tasks_blocked()
        text = Asked(m).runtime.rows()["haSlaves"]
        assert text.startswith("13 connected, 13 in sync")
        assert text.endswith("; and 3 more")


async def test_the_rows_of_a_slave(autojump_clock) -> None:
    async with master() as m:
        assert Asked(m, view=COPYING, master_end=1000).runtime.rows() == {
            "brokerRole": "SLAVE",
            "haMaster": "10.0.0.1:10912",
            "haState": "TRANSFER: from 10.0.0.1:10912, offset 0",
            "haTransfer": "1234 B/s, 3 reconnects, heard from 2.5 s ago",
            "haLag": "300 bytes",
        }


async def test_a_suspended_slave_says_why(autojump_clock) -> None:
    async with master() as m:
        view = attrs.evolve(
            COPYING, state=LinkState.SUSPEND, reason="slave ahead: 700 and 600", read_age_s=None
        )
        rows = Asked(m, view=view, master_end=600).runtime.rows()
        assert rows["haState"] == "SUSPEND: slave ahead: 700 and 600"
        assert rows["haLag"] == "0 bytes", "never negative"
        rows = Asked(m, view=attrs.evolve(view, master=None, reason="")).runtime.rows()
        assert (rows["haMaster"], rows["haState"]) == ("not known yet", "SUSPEND")
        assert "haLag" not in rows


def test_tables_that_do_not_follow_are_named() -> None:
    def table(name: str, state: ItemState, age_s: float | None, error: str = "") -> ItemView:
        return ItemView(name, state, age_s, 1, 0, 0, error)

    good = [
        table("topics", ItemState.GOOD, 0.5, "was refused once"),
        table("delays", ItemState.WAITING, 12.34),
    ]
    assert tables_text(good) == "2 of 2 copied, the oldest 12.3 s ago"
    wrong = [table("modes", ItemState.NEW, None), table("groups", ItemState.FAILING, 3.0, "no")]
    assert tables_text([*good, *wrong]) == (
        "2 of 4 copied, the oldest 12.3 s ago; modes not copied yet; groups cannot be copied (no)"
    )
    assert tables_text(wrong[:1]) == "0 of 1 copied; modes not copied yet"


async def test_slaves_of_a_slave_are_shown_too(autojump_clock) -> None:
    async with master() as m:
        end = m.put()
        asked = Asked(m, view=COPYING)
        assert "haSlaves" not in asked.runtime.rows()
        await m.connect(report=end)
        await wait_all_tasks_blocked()
        assert asked.runtime.rows()["haSlaves"].startswith("1 connected")
