"""A slave's tables follow those of a scripted master: what is asked when, what is taken, and what never goes back."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.broker.delayoffsets import DelayOffsets
from trio_mq.broker.follow import PERIOD_S, WAITING_MOST, Follower, ItemState
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.mastercalls import Pages
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.pop.modes import RequestModes
from trio_mq.broker.saver import Saver
from trio_mq.broker.tables import BrokerTables, load_tables
from trio_mq.broker.timermetrics import TimerMetrics
from trio_mq.broker.topics import TopicTable
from trio_mq.config import Address, BrokerSettings
from trio_mq.errors import BodyError, RequestRefused
from trio_mq.net.requests import Reply, RequestTable, requests_in
from trio_mq.protocol import jsondialect
from trio_mq.protocol.bodies import DataVersion
from trio_mq.store.timercheck import TimerCheckpoint
from trio_mq.tasks import Watermark, stage
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk
from trio_mq.testing.hosts import MemoryHost
from trio_mq.testing.links import MemoryNetwork

MASTER, OTHER, OWN = Address("10.1.0.1", 10911), Address("10.1.0.3", 10911), Address("me", 10911)
SETTINGS = BrokerSettings(broker_name="b-a")
TOPICS, OFFSETS, DELAYS, CHECK, COUNTS, GROUPS, MODES, INFO = 21, 43, 45, 60, 61, 201, 402, 28


@attrs.define(eq=False, slots=False)
class Master:
    """A master that says what the test wants; `failing` codes are refused, `hanging` ones are never answered."""

    network: MemoryNetwork
    address: Address = MASTER
    topics: dict = attrs.field(factory=dict)
    groups: dict = attrs.field(factory=dict)
    modes: dict = attrs.field(factory=dict)
    offsets: dict = attrs.field(factory=dict)
    levels: dict = attrs.field(factory=dict)
    counts: dict = attrs.field(factory=dict)
    checkpoint: TimerCheckpoint = attrs.field(factory=TimerCheckpoint)
    version: tuple = (1, 1_000)
    log_end: int = 0
    page: int = 2000
    failing: set = attrs.field(factory=set)
    hanging: set = attrs.field(factory=set)
    asked: list = attrs.field(factory=list)
    host: MemoryHost | None = None

    async def start(self, nursery):
        self.host = MemoryHost(self.network, self.address.host)
        port = self.host.listen(self.address.host, self.address.port, purpose="broker")
        await nursery.start(self.host.serve, [port], self)

    def stop(self):
        self.host.kill()

    def times(self, code):
        return [at for at, asked in self.asked if asked == code]

    # -- as a handler

    def opened(self, peer):
        pass

    def disconnected(self, peer):
        pass

    def received(self, peer, frames):
        table = RequestTable("master")
        for command in requests_in(peer, frames):
            self.asked.append((round(trio.current_time(), 2), command.code))
            if command.code in self.hanging:
                continue
            table.add(command.code, None, lambda call, _: self.answer(call.command))
            table.handle(peer, command, 0)
            table = RequestTable("master")

    @property
    def data_version(self):
        counter, timestamp = self.version
        return {"counter": counter, "stateVersion": 0, "timestamp": timestamp}

    def answer(self, command):
        code = command.code
        if code in self.failing:
            raise RequestRefused(1, "not today")
        if code == CHECK:
            return Reply(body=self.checkpoint.pack())
        if code == TOPICS:
            return self.paged(command, "topicConfigTable", self.topics, "Topic")
        if code == GROUPS:
            return self.paged(command, "subscriptionGroupTable", self.groups, "Group")
        found = {
            OFFSETS: {"offsetTable": self.offsets, "dataVersion": self.data_version},
            DELAYS: {"offsetTable": self.levels, "dataVersion": self.data_version},
            COUNTS: {"timingCount": self.counts, "dataVersion": self.data_version},
            MODES: {"messageRequestModeMap": self.modes},
            INFO: {"table": {"commitLogMaxOffset": str(self.log_end)}},
        }[code]
        return Reply(body=jsondialect.dumps(found))

    def paged(self, command, name, table, what):
        version = jsondialect.dumps(self.data_version).decode()
        same = command.ext["dataVersion"] == version
        begin = int(command.ext[f"{what.lower()}Seq"]) if same else 0
        names = sorted(table)[begin : begin + min(self.page, int(command.ext[f"max{what}Num"]))]
        body = {name: {key: table[key] for key in names}, "dataVersion": self.data_version}
        return Reply(body=jsondialect.dumps(body), ext={f"total{what}Num": str(len(table))})


class Timer:
    """What a slave keeps of its master's timers."""

    def __init__(self):
        self.checkpoints, self.metrics = [], TimerMetrics(TrioClock())

    async def load(self):
        pass

    async def take_checkpoint(self, checkpoint):
        self.checkpoints.append(checkpoint)
        return True

    def follow_anew(self):
        self.checkpoints.clear()

    async def take_counts(self, value):
        self.metrics.take_over(value)


@attrs.define(eq=False)
class Slave:
    tables: BrokerTables
    follower: Follower
    kept: Watermark
    timer: Timer
    disk: MemoryDisk

    @property
    def topics(self):
        return self.tables.topics.table

    @property
    def offsets(self):
        return self.tables.offsets.table

    def progress(self, group="G"):
        return self.offsets.query(group, "T", 0)

    def saved(self, name):
        return jsondialect.loads(self.disk.files()[f"/store/config/{name}"])

    def view(self, name):
        return next(view for view in self.follower.views if view.name == name)

    def states(self):
        return {view.state for view in self.follower.views}


@asynccontextmanager
async def slave_on(network, disk=None, *, kept=10**9):
    disk, clock = disk or MemoryDisk(), TrioClock()
    tables = await load_tables(
        disk,
        "/store/config",
        clock,
        topics=TopicTable(SETTINGS, clock),
        groups=GroupTable(SETTINGS, clock),
        offsets=ConsumerOffsets(SETTINGS, clock),
        delays=DelayOffsets(clock),
    )
    watermark, timer = Watermark(kept), Timer()
    follower = Follower(
        tables,
        Saver(tables, 5.0),
        disk,
        watermark,
        timer=timer,
        connect=network.connect,
        own=OWN,
    )
    async with stage() as nursery:
        await nursery.start(follower.run)
        yield Slave(tables, follower, watermark, timer, disk)


@pytest.fixture
def network():
    return MemoryNetwork()


@pytest.fixture
async def master(network, nursery):
    made = Master(
        network,
        topics={"T": {"topicName": "T", "perm": 6}},
        groups={"G": {"groupName": "G"}},
        modes={"T": {"G": {"topic": "T", "consumerGroup": "G", "mode": "POP"}}},
        offsets={"T@G": {0: 5}},
        levels={1: 7},
        counts={"T": {"count": 2, "timeStamp": 1}},
        checkpoint=TimerCheckpoint(9, 8, 7, 7, 0, 5, 1),
    )
    await made.start(nursery)
    return made


async def test_the_first_sync_begins_at_once_and_the_next_every_ten_seconds(
    autojump_clock, network, master
):
    async with slave_on(network) as slave:
        await trio.sleep(3)
        assert master.asked == []
        assert slave.states() == {ItemState.NEW}
        slave.follower.follow(MASTER)
        await trio.sleep(1)
        assert "T" in slave.topics
        assert slave.tables.groups.table.get("G") is not None
        assert slave.progress() == 5
        assert dict(slave.tables.delays.table.levels) == {1: 7}
        assert slave.tables.modes.table.get("T", "G").mode == "POP"
        assert slave.timer.checkpoints == [master.checkpoint]
        assert dict(slave.timer.metrics.counts) == {"T": 2}
        assert slave.states() == {ItemState.GOOD}
        await trio.sleep(30)
        for code in (TOPICS, OFFSETS, DELAYS, CHECK, COUNTS, GROUPS, MODES):
            assert sorted(set(master.times(code))) == [3, 13, 23, 33], code
        assert len(master.times(OFFSETS)) == 4
        assert len(master.times(TOPICS)) == 4, "only the version, when nothing has changed"
        assert len(network.attempts) == 1
        assert slave.view("topics").turns == 4


async def test_what_was_copied_is_in_the_files_at_the_masters_version(
    autojump_clock, network, master
):
    async with slave_on(network) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(1)
        for name, table, key in (
            ("topics.json", "topicConfigTable", "T"),
            ("subscriptionGroup.json", "subscriptionGroupTable", "G"),
            ("messageRequestMode.json", "messageRequestModeMap", "T"),
            ("consumerOffset.json", "offsetTable", "T@G"),
            ("delayOffset.json", "offsetTable", 1),
        ):
            assert key in slave.saved(name)[table]
            if name != "messageRequestMode.json":
                assert slave.saved(name)["dataVersion"] == master.data_version
        slave.topics.create_retry("%RETRY%G", 1)  # a consumer of this slave
        writes = slave.disk.files()
        await trio.sleep(30)
        assert slave.topics.version == DataVersion(1, 0, 1_000)
        assert "%RETRY%G" in slave.topics, "it is copied again when the master's has changed"
        unchanged = slave.disk.files()
        assert {p for p in writes if writes[p] != unchanged[p]} <= {"/store/config/topics.json"}
        master.version = 2, 2_000
        await trio.sleep(10)
        assert "%RETRY%G" not in slave.topics


async def test_long_tables_come_in_pages_and_are_swapped_at_once(autojump_clock, network, master):
    master.topics = {f"T{i:02}": {"topicName": f"T{i:02}"} for i in range(11)}
    master.groups = {f"G{i:02}": {"groupName": f"G{i:02}"} for i in range(11)}
    master.page = 5  # and Apache's slaves would not ask for the eleventh
    async with slave_on(network) as slave:
        seen = []
        slave.topics.changed = lambda _: seen.append(sum(t in slave.topics for t in master.topics))
        slave.follower.follow(MASTER)
        await trio.sleep(1)
        assert seen == [11] * 11
        assert all(group in slave.tables.groups.table for group in master.groups)
        assert len(master.times(TOPICS)) == len(master.times(GROUPS)) == 3


async def test_items_are_independent_and_retries_are_bounded(
    autojump_clock, network, master, caplog
):
    master.failing, master.hanging = {OFFSETS}, {DELAYS}
    async with slave_on(network) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(9.9)
        assert master.times(OFFSETS) == [0, 1, 2]
        assert master.times(DELAYS)[:2] == [0, 4]
        assert slave.view("consumer offsets").state is ItemState.FAILING
        assert "not today" in slave.view("consumer offsets").last_error
        assert slave.view("consumer offsets").failures == 3
        assert slave.view("consumer offsets").given_up == 1
        assert slave.view("delay progress").state is ItemState.FAILING
        for name in ("topics", "groups", "request modes", "timer counts", "timer progress"):
            assert slave.view(name).state is ItemState.GOOD, name
        await trio.sleep(30)
        assert [at for at in master.times(OFFSETS) if at >= 10][:3] == [10, 11, 12]
        told = Counter(r.message for r in caplog.records if r.levelno >= logging.WARNING)
        assert max(told.values()) == 1
        assert len(told) == 2
        master.failing, master.hanging = set(), set()
        await trio.sleep(25)
        assert slave.states() == {ItemState.GOOD}
        assert slave.progress() == 5
        assert slave.view("consumer offsets").age_s < PERIOD_S
        assert "not today" in slave.view("consumer offsets").last_error


async def test_a_master_that_is_away_costs_one_line_and_is_found_again(
    autojump_clock, network, master, nursery, caplog
):
    master.stop()
    async with slave_on(network) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(600)
        assert slave.states() == {ItemState.FAILING}
        assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
        await master.start(nursery)
        await trio.sleep(PERIOD_S + 3)
        assert slave.states() == {ItemState.GOOD}
        assert "tables follow the master at 10.1.0.1:10911 again" in caplog.text


async def test_a_master_that_hangs_is_called_over_a_new_connection(autojump_clock, network, master):
    async with slave_on(network) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(1)
        network.sever(MASTER.host)
        await trio.sleep(40)
        assert ItemState.FAILING in slave.states()
        network.mend()
        await trio.sleep(25)
        assert slave.states() == {ItemState.GOOD}


async def test_progress_counts_once_the_log_has_come_that_far(autojump_clock, network, master):
    master.log_end = 1_000
    async with slave_on(network, kept=900) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(5)
        assert "T" in slave.topics, "settings do not wait"
        assert slave.progress() is None
        assert slave.view("delay progress").state is ItemState.WAITING
        assert (dict(slave.tables.delays.table.levels), slave.timer.checkpoints) == ({}, [])
        master.log_end, master.offsets = 2_000, {"T@G": {0: 50}}
        await trio.sleep(PERIOD_S)
        slave.kept.advance(1_500)
        await trio.sleep(0.1)
        assert slave.progress() == 5, "what the master said when its log ended at 1000"
        assert slave.view("delay progress").state is ItemState.GOOD
        slave.kept.advance(2_000)
        await trio.sleep(0.1)
        assert slave.progress() == 50


async def test_a_slave_that_is_far_behind_keeps_a_bounded_number_of_answers(
    autojump_clock, network, master
):
    async with slave_on(network, kept=0) as slave:
        slave.follower.follow(MASTER)
        for round_ in range(2 * WAITING_MOST):
            master.log_end, master.offsets = (round_ + 1) * 100, {"T@G": {0: round_}}
            await trio.sleep(PERIOD_S)
        slave.kept.advance(250)
        await trio.sleep(0.1)
        assert slave.progress() == 1
        slave.kept.advance(10**9)
        await trio.sleep(0.1)
        assert slave.progress() == 2 * WAITING_MOST - 1


async def test_answers_that_wait_for_a_log_that_is_gone_are_forgotten(
    autojump_clock, network, master
):
    master.log_end, master.levels = 1_000, {1: 99}
    async with slave_on(network, kept=500) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(1)
        master.log_end, master.levels = 700, {1: 70}  # it came back without its tail
        await trio.sleep(PERIOD_S)
        slave.kept.advance(700)
        await trio.sleep(0.1)
        assert dict(slave.tables.delays.table.levels) == {1: 70}
        slave.kept.advance(1_000)
        await trio.sleep(0.1)
        assert dict(slave.tables.delays.table.levels) == {1: 70}


async def test_a_master_that_returns_with_a_state_before_rolls_nothing_back(
    autojump_clock, network, master, nursery, caplog
):
    master.version = 7, 7_000
    master.topics["NEW"] = {"topicName": "NEW"}
    async with slave_on(network) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(1)
        master.stop()
        slave.offsets.commit("G", "T", 0, 9)  # a consumer that has no other broker now
        del master.topics["NEW"]
        master.version, master.offsets, master.levels = (6, 6_000), {"T@G": {0: 4}}, {1: 3}
        await trio.sleep(30)
        await master.start(nursery)
        await trio.sleep(PERIOD_S + 3)
        assert "NEW" in slave.topics
        assert (slave.progress(), slave.tables.delays.table.levels[1]) == (9, 7)
        assert slave.view("topics").state is ItemState.OLDER
        assert slave.view("consumer offsets").state is ItemState.OLDER
        assert caplog.text.count("has topics of a state before ours") == 1
        # changes there make it newer than what we have: it leads again
        master.version, master.topics = (8, 9_000), {"T": {"topicName": "T"}}
        master.offsets, master.levels = {"T@G": {0: 10}}, {1: 8}
        await trio.sleep(PERIOD_S)
        assert "NEW" not in slave.topics
        assert (slave.progress(), slave.tables.delays.table.levels[1]) == (10, 8)
        assert slave.states() == {ItemState.GOOD}


async def test_what_consumers_committed_here_survives_a_master_at_the_same_version(
    autojump_clock, network, master, nursery
):
    """The version of offsets stands for 500 commits: it says nothing of the last few."""
    async with slave_on(network) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(1)
        master.stop()
        slave.offsets.commit("G", "T", 0, 9)
        await trio.sleep(30)
        master.offsets = {"T@G": {0: 4}}
        await master.start(nursery)
        await trio.sleep(3 * PERIOD_S)
        assert slave.progress() == 9
        master.offsets = {"T@G": {0: 12}}
        await trio.sleep(PERIOD_S)
        assert slave.progress() == 12


async def test_a_quick_restart_between_two_turns_is_a_return_too(
    autojump_clock, network, master, nursery
):
    async with slave_on(network) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(1)
        slave.offsets.commit("G", "T", 0, 9)
        master.stop()
        master.offsets = {"T@G": {0: 4}}  # less than it said before, and it means nothing
        await master.start(nursery)
        await trio.sleep(2 * PERIOD_S)
        assert slave.progress() == 9
        assert all(view.failures == 0 for view in slave.follower.views)


async def test_after_a_cut_of_our_log_progress_is_where_the_master_says(
    autojump_clock, network, master
):
    master.version, master.log_end, master.levels = (7, 7_000), 1_000, {1: 99}
    async with slave_on(network, kept=1_000) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(1)
        slave.offsets.commit("G", "T", 0, 9)
        slave.kept.fall_back(600)  # haCutWhenAhead
        master.version, master.log_end = (6, 6_000), 600
        master.levels, master.offsets = {1: 60}, {"T@G": {0: 4}}
        await trio.sleep(PERIOD_S)
        assert dict(slave.tables.delays.table.levels) == {1: 60}
        assert slave.timer.checkpoints == [master.checkpoint]
        assert slave.progress() == 4


async def test_another_master_no_master_and_oneself(autojump_clock, network, master, nursery):
    other = Master(network, OTHER, version=(3, 3_000), topics={"U": {"topicName": "U"}})
    await other.start(nursery)
    async with slave_on(network) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(4)
        slave.follower.follow(OTHER)
        await trio.sleep(1)
        assert ("U" in slave.topics, "T" in slave.topics) == (True, False)
        assert slave.progress() == 5, "what the other one has nothing of stays"
        for nobody in (None, OWN):
            asked = len(other.asked)
            slave.follower.follow(nobody)
            await trio.sleep(60)
            assert len(other.asked) == asked
            assert slave.follower.master is None
        slave.follower.follow(OTHER)
        await trio.sleep(1)
        assert other.times(TOPICS)[-1] == round(trio.current_time(), 2) - 1
        assert len(master.times(TOPICS)) == 1


async def test_a_disk_that_takes_no_files_is_a_failure_of_the_item_and_heals(
    autojump_clock, network, master
):
    async with slave_on(network) as slave:
        slave.disk.fill()
        slave.follower.follow(MASTER)
        await trio.sleep(5)
        assert slave.view("topics").state is ItemState.FAILING
        assert "topics.json" in slave.view("topics").last_error
        assert slave.view("timer progress").state is ItemState.GOOD
        slave.disk.make_room()
        await trio.sleep(PERIOD_S)
        assert slave.view("topics").state is ItemState.GOOD
        assert "T" in slave.saved("topics.json")["topicConfigTable"]


@pytest.mark.parametrize("moment_s", [0.0, 0.5, 3.5, 4.5])
async def test_stopping_takes_no_time_whatever_happens(autojump_clock, network, master, moment_s):
    master.hanging = {TOPICS, OFFSETS}
    async with slave_on(network) as slave:
        slave.follower.follow(MASTER)
        await trio.sleep(moment_s)
        began_s = trio.current_time()
    assert trio.current_time() == began_s


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"topicConfigTable":[]}', b"\xff" * 40])
async def test_answers_that_mean_nothing_change_nothing(autojump_clock, network, master, data):
    master.answer = lambda command: Reply(body=data)
    async with slave_on(network) as slave:
        before = slave.topics.to_json(), slave.offsets.to_json()
        slave.follower.follow(MASTER)
        await trio.sleep(40)
        assert (slave.topics.to_json(), slave.offsets.to_json()) == before
        assert ItemState.GOOD not in slave.states() - {slave.view("timer counts").state}
        assert slave.timer.checkpoints == []


NAMES = [
    "dataVersion",
    "offsetTable",
    "topicConfigTable",
    "subscriptionGroupTable",
    "forbiddenTable",
    "timingCount",
    "lmqOffsetTable",
    "messageRequestModeMap",
    "counter",
    "timestamp",
    "stateVersion",
    "T@G",
    "T",
    "G",
    "0",
    "count",
    "perm",
    "topicName",
    "groupName",
    "mode",
    "attributes",
    "topicQueueMappingDetailMap",
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(NAMES)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.integers(-2, 5), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(JSON)
def test_whatever_a_master_says_is_a_table_or_refused(value):
    """Any other error would end the broker."""
    clock = TrioClock(1_000)
    offsets = ConsumerOffsets(SETTINGS, clock)
    takers = (
        TopicTable(SETTINGS, clock).take_over,
        GroupTable(SETTINGS, clock).take_over,
        RequestModes().take_over,
        DelayOffsets(clock).take_over,
        TimerMetrics(clock).take_over,
        lambda value: offsets.take_over(value, returned=True),
        lambda value: Pages("topicConfigTable", ("topicQueueMappingDetailMap",)).take(3, value),
        lambda value: Pages("subscriptionGroupTable", ("forbiddenTable",)).take(None, value),
    )
    for take in takers:
        with contextlib.suppress(BodyError):
            take(value)
