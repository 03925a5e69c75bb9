"""Settings that change while the broker runs: what is taken, what is refused, what a restart keeps."""

from __future__ import annotations

import attrs
import pytest

from tests.broker.processors.conftest import STORE, make_bench
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.tables import load_tables
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings, Settings
from trio_mq.config.live import LIVE
from trio_mq.config.settings import catalogue
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import DataVersion

UPDATE, CONFIG = 25, 26
NO_PERMISSION, INVALID = 16, 29


def shown(bench) -> dict[str, str]:
    lines = bench.ask(CONFIG).body.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


async def test_a_change_is_in_force_and_shown_at_once(bench):
    assert shown(bench)["fileReservedTime"] == "72"
    assert bench.ask(UPDATE, body=b"fileReservedTime=48\ndeleteWhen=05").code == 0
    assert shown(bench)["fileReservedTime"] == "48"
    assert shown(bench)["deleteWhen"] == "05"
    assert "expire 48 h" in bench.store.cleaner.schedule_text()
    version = bodies.decode(DataVersion, bench.ask(CONFIG).ext["version"].encode())
    assert version.counter == 1


async def test_the_broker_permission_counts_for_all_and_name_servers_hear_of_it(bench):
    version = bench.topics.version
    assert bench.ask(UPDATE, body=b"brokerPermission=4").code == 0
    assert bench.settings.broker.broker_permission == 4
    assert bench.permission_changes == 1
    assert bench.topics.version != version, "what was checked once for a topic is checked again"
    assert bench.ask(UPDATE, body=b"longPollingEnable=false").code == 0
    assert bench.permission_changes == 1


async def test_topics_are_created_by_sends_once_that_is_allowed():
    bench = await make_bench(auto_create_topic_enable=False)
    assert "TBW102" not in bench.topics
    assert bench.ask(UPDATE, body=b"autoCreateTopicEnable=true").code == 0
    assert bench.topics.for_send("New", "TBW102", 4).write_queue_nums == 4


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("brokerConfigPath=/x", NO_PERMISSION, "brokerConfigPath"),
        ("rocketmqHome=/x", NO_PERMISSION, "rocketmqHome"),
        ("configBlackList=", NO_PERMISSION, "configBlackList"),
        ("fileReservedTimes=48", INVALID, "did you mean fileReservedTime?"),
        ("noSuchThing=48", INVALID, "unknown key noSuchThing"),
        ("fileReservedTime=never", INVALID, "whole hours"),
        ("brokerPermission=8", INVALID, "from 0 to 7"),
        ("diskMaxUsedSpaceRatio=99", INVALID, "10 to 95"),
        ("listenPort=1", INVALID, "takes effect at a start only"),
        ("sendThreadPoolQueueCapacity=5", INVALID, "not used here"),
        ("sendThreadPoolQueueCapacity=x", INVALID, "not a whole number"),
    ],
)
async def test_refusals_say_why_and_change_nothing(bench, line, code, told):
    before = shown(bench)
    reply = bench.ask(UPDATE, body=f"deleteWhen=05\n{line}".encode())
    assert reply.code == code
    assert told in reply.remark
    assert shown(bench) == before


async def test_the_black_list_of_the_settings_counts():
    bench = await make_bench(config_black_list="fileReservedTime;deleteWhen")
    assert bench.ask(UPDATE, body=b"deleteWhen=05").code == NO_PERMISSION
    assert bench.ask(UPDATE, body=b"longPollingEnable=false").code == 0


async def test_what_changes_nothing_is_taken(bench):
    port = shown(bench)["listenPort"]
    body = f"listenPort={port}\nsendThreadPoolQueueCapacity=10000\nfileReservedTime=72"
    assert bench.ask(UPDATE, body=body.encode()).code == 0
    assert bench.ask(UPDATE).code == 0
    assert bench.tables.updates.table.revision == 0


async def restarted(bench, **settings) -> Settings:
    """The settings after a restart with other given ones."""
    mine = BrokerSettings(broker_name="b-a", **settings)
    tables = await load_tables(
        bench.disk,
        "/store/config",
        bench.clock,
        topics=TopicTable(mine, bench.clock),
        groups=GroupTable(mine, bench.clock),
        offsets=ConsumerOffsets(mine, bench.clock),
    )
    found = Settings(broker=mine, store=attrs.evolve(STORE))
    tables.updates.table.restore(found)
    bench.tables = tables
    return found


async def test_a_restart_keeps_changes_until_the_given_setting_is_another(bench):
    assert bench.ask(UPDATE, body=b"longPollingEnable=false\nbrokerPermission=4").code == 0
    await bench.tables.updates.persist()
    again = await restarted(bench)
    assert (again.broker.long_polling_enable, again.broker.broker_permission) == (False, 4)
    edited = await restarted(bench, broker_permission=2)
    assert (edited.broker.long_polling_enable, edited.broker.broker_permission) == (False, 2)
    assert list(bench.tables.updates.table.current()) == ["longPollingEnable"]
    assert bench.tables.updates.unsaved


async def test_a_change_back_to_what_was_given_is_no_change(bench):
    for value in (b"false", b"true"):
        assert bench.ask(UPDATE, body=b"longPollingEnable=" + value).code == 0
    await bench.tables.updates.persist()
    assert (await restarted(bench, long_polling_enable=False)).broker.long_polling_enable is False


def test_all_live_settings_are_ours():
    assert {info.meta.key for info in catalogue()} >= LIVE
