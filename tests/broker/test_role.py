"""What a broker does and refuses, by its role: the rules alone, and a whole broker without sockets."""

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from tests.broker.support import BROKER, SUSPEND, FakePeer, pull, request, send, serving, texts
from trio_mq.broker.role import Role
from trio_mq.config.ha import BrokerRole, HASettings
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import SubscriptionGroupConfig
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.store.reader import Found, Messages
from trio_mq.testing.disk import MemoryDisk

SLAVE = HASettings(role=BrokerRole.SLAVE)
READING = attrs.evolve(SLAVE, slave_read_enable=True)
ACTING = attrs.evolve(SLAVE, enable_slave_acting_master=True)
SENDS = [10, 310, 320, 36, 324, 325]
PULLS = [11, 361]


# -- the rules alone


@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER])
def test_master_refuses_nothing(role):
    found = Role(HASettings(role=role))
    assert all(found.refusal(code) is None for code in RequestCode)
    assert found.puts
    assert not found.master_is_gone


@pytest.mark.parametrize("code", SENDS)
@pytest.mark.parametrize(("ha", "refused"), [(SLAVE, 2), (READING, 2), (ACTING, 14)])
def test_slave_takes_no_messages(code, ha, refused):
    role = Role(ha, 1)
    role.hear(min_broker_id=1)
    refusal = role.refusal(code)
    # What a consumer sends back fails with 1 there: it then sends an ordinary message to another broker.
    assert refusal.code == (1 if (code, refused) == (36, 14) else refused)
    assert "slave" in refusal.remark


@pytest.mark.parametrize(("code", "refused"), [(37, 11), (370, 11), (222, 1), (323, 1)])
def test_what_would_put_a_message_is_refused_with_the_peers_codes(code, refused):
    assert Role(SLAVE, 1).refusal(code).code == refused


@pytest.mark.parametrize("code", [200_050, 200_051, 200_151, 200_053, 200_054])
def test_slave_hands_out_no_pops(code):
    assert Role(SLAVE, 1).refusal(code).code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize("code", PULLS)
def test_slave_answers_pulls_only_if_asked_to_or_while_it_acts_as_the_master(code):
    assert Role(SLAVE, 1).refusal(code).code == ResponseCode.SYSTEM_BUSY
    assert Role(READING, 1).refusal(code) is None
    role = Role(ACTING, 1)
    assert role.refusal(code).code == ResponseCode.SYSTEM_BUSY
    role.hear(min_broker_id=1)
    assert role.refusal(code) is None
    role.hear(min_broker_id=0)
    assert role.refusal(code).code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize("code", [14, 15, 29, 30, 31, 32, 33, 12, 34, 38, 41, 17, 200, 28])
def test_slave_answers_where_groups_and_queues_are(code):
    assert Role(SLAVE, 1).refusal(code) is None


def test_smallest_id_acts_as_the_master():
    told = []
    role = Role(ACTING, 2)
    role.changed.append(lambda: told.append(role.acts_as_master))
    assert not role.acts_as_master
    role.hear(min_broker_id=1, alive=2)
    assert role.master_is_gone
    assert role.alive_replicas == 2
    role.hear(min_broker_id=2)
    role.hear(min_broker_id=2)  # no news
    role.hear(min_broker_id=0)
    assert not role.master_is_gone
    assert told == [False, True, False]


def test_slave_that_may_not_act_takes_no_notice_of_the_smallest_id():
    role = Role(SLAVE, 1)
    assert not role.hear(min_broker_id=1)
    assert not role.acts_as_master
    assert not role.master_is_gone


GROUP = SubscriptionGroupConfig("CG", broker_id=0, which_broker_when_consume_slowly=3)


@pytest.mark.parametrize(
    ("ha", "lags", "gone", "suggested"),
    [
        (HASettings(), False, False, 0),
        (HASettings(), True, False, 0),
        (HASettings(slave_read_enable=True), False, False, 0),
        (HASettings(slave_read_enable=True), True, False, 3),
        (READING, False, False, 0),
        (READING, True, False, 3),
        (READING, True, True, 2),
        (SLAVE, False, True, 2),
        (SLAVE, True, False, 0),
        (READING, False, True, 2),
    ],
)
def test_where_a_reader_is_sent(ha, lags, gone, suggested):
    role = Role(ha, 2 if ha.is_slave else 0)
    role.hear(master_registered=not gone)
    assert role.suggest(GROUP, lags=lags) == suggested


def test_master_suggests_the_brokers_of_the_group():
    group = attrs.evolve(GROUP, broker_id=5)
    assert Role(HASettings(slave_read_enable=True)).suggest(group, lags=False) == 5
    assert Role(HASettings()).suggest(group, lags=False) == 0


OUTSIDE = [
    Found.NO_MATCHED_LOGIC_QUEUE,
    Found.NO_MESSAGE_IN_QUEUE,
    Found.OFFSET_TOO_SMALL,
    Found.OFFSET_OVERFLOW_BADLY,
    Found.OFFSET_FOUND_NULL,
]


@pytest.mark.parametrize("found", OUTSIDE)
def test_slave_corrects_no_offset_unless_told_to(found):
    read = Messages(found, 77, 0, 0)
    assert Role(READING, 1).corrected(read, 5) == 5
    assert Role(attrs.evolve(READING, offset_check_in_slave=True), 1).corrected(read, 5) == 77
    assert Role().corrected(read, 5) == 77


def test_slave_goes_on_behind_what_it_read():
    for found in (Found.FOUND, Found.NO_MATCHED_MESSAGE, Found.MESSAGE_WAS_REMOVING):
        assert Role(READING, 1).corrected(Messages(found, 77, 0, 0), 5) == 77


def test_slave_sends_a_reader_who_is_elsewhere_to_a_living_master():
    assert [Role(READING, 1).reply_code(code) for code in (19, 20, 21)] == [19, 20, 20]
    assert [Role().reply_code(code) for code in (19, 20, 21)] == [19, 20, 21]


def test_without_a_master_such_a_reader_waits_at_the_slave():
    role = Role(READING, 1)
    role.hear(master_registered=False)
    assert [role.reply_code(code) for code in (19, 20, 21)] == [19, 20, 19]


@pytest.mark.parametrize("registered", [True, False])
def test_slave_that_checks_offsets_moves_readers_as_a_master_does(registered):
    role = Role(attrs.evolve(READING, offset_check_in_slave=True), 1)
    role.hear(master_registered=registered)
    assert [role.reply_code(code) for code in (19, 20, 21)] == [19, 20, 21]


# -- a whole broker


@asynccontextmanager
async def slave_of(*stored, ha=READING):
    """A slave with some messages in queue 0 of T, that it got from a master."""
    disk = MemoryDisk()
    async with serving(disk) as master:
        master.create()
        master.put(*stored)
    settings = attrs.evolve(BROKER, broker_id=1)
    async with serving(disk, broker=settings, ha=ha) as slave:
        yield slave


async def test_slave_runs_nothing_that_puts(autojump_clock):
    disk = MemoryDisk()
    async with serving(disk) as master:
        master.create()
        master.put(b"later", properties="DELAY\x011\x02")
        end = master.store.log.end
    async with serving(disk, broker=attrs.evolve(BROKER, broker_id=1), ha=SLAVE) as slave:
        await trio.sleep(120)
        assert slave.store.log.end == end
        assert slave.store.queue("T", 0) is None or slave.store.queue("T", 0).max_offset == 0
    async with serving(disk) as master:
        await trio.sleep(10)
        assert texts(master.ask(pull())) == [b"later"]


async def test_slave_refuses_all_that_puts_and_stores_nothing(autojump_clock):
    async with slave_of(b"a") as slave:
        end = slave.store.log.end
        for long_way in (False, True):
            for code in SENDS[:3]:
                frame = send(code=code, long_way=long_way, batch=code == 320)
                assert slave.ask(frame).code == ResponseCode.SYSTEM_BUSY
        back = headers.ConsumerSendMsgBackRequest(offset=0, group="CG", delay_level=0)
        reply = slave.ask(request(RequestCode.CONSUMER_SEND_MSG_BACK, back))
        assert reply.code == ResponseCode.SYSTEM_BUSY
        # Without a single field: the role is looked at first.
        assert slave.ask(request(RequestCode.END_TRANSACTION)).code == 11
        recall = headers.RecallMessageRequest("T", "handle")
        assert slave.ask(request(RequestCode.RECALL_MESSAGE, recall)).code == 16, "switched off"
        assert slave.ask(request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)).code == 1
        assert slave.ask(request(RequestCode.POP_MESSAGE)).code == 14
        assert slave.store.log.end == end


async def test_slave_recalls_nothing(autojump_clock):
    settings = attrs.evolve(BROKER, broker_id=1, recall_message_enable=True)
    async with serving(broker=settings, ha=SLAVE) as slave:
        assert slave.ask(request(RequestCode.RECALL_MESSAGE)).code == 11


async def test_slave_refuses_pulls_unless_it_may_be_read(autojump_clock):
    async with slave_of(b"a", ha=SLAVE) as slave:
        reply = slave.ask(pull())
        assert reply.code == ResponseCode.SYSTEM_BUSY
        assert "slaveReadEnable" in reply.remark


def told(reply):
    return headers.decode(headers.PullMessageReply, reply.ext)


async def test_pulls_at_a_slave_with_a_living_master(autojump_clock):
    """As an Apache slave answers them: at the end they wait, elsewhere they are sent to the master."""
    async with slave_of(b"a", b"b") as slave:
        reply = slave.ask(pull())
        assert texts(reply) == [b"a", b"b"]
        assert told(reply).suggest_which_broker_id == 0
        reply = slave.ask(pull(9, sys_flag=SUSPEND))
        assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (told(reply).next_begin_offset, told(reply).suggest_which_broker_id) == (9, 0)
        began = trio.current_time()
        reply = await slave.answer(pull(2, sys_flag=SUSPEND))
        assert trio.current_time() - began == pytest.approx(15, abs=0.2)
        assert reply.code == ResponseCode.PULL_NOT_FOUND
        assert (told(reply).next_begin_offset, told(reply).suggest_which_broker_id) == (2, 0)


@pytest.mark.parametrize("offset", [2, 9])
async def test_pulls_at_a_slave_wait_while_there_is_no_master(offset, autojump_clock):
    async with slave_of(b"a", b"b") as slave:
        slave.broker.role.hear(master_registered=False)
        reply = slave.ask(pull())
        assert texts(reply) == [b"a", b"b"]
        assert told(reply).suggest_which_broker_id == 1
        peer, began = FakePeer(), trio.current_time()
        slave.hand(peer, pull(offset, sys_flag=SUSPEND))
        assert not peer.take()
        reply = await slave.next(peer)
        assert trio.current_time() - began == pytest.approx(15, abs=0.2)
        assert reply.code == ResponseCode.PULL_NOT_FOUND
        assert told(reply).next_begin_offset == offset


async def test_who_waits_at_a_slave_is_sent_to_the_master_that_is_back(autojump_clock):
    async with slave_of(b"a") as slave:
        role = slave.broker.role
        role.hear(master_registered=False)
        peer, began = FakePeer(), trio.current_time()
        slave.hand(peer, pull(1, sys_flag=SUSPEND))
        await trio.sleep(1)
        assert not peer.take()
        role.hear()
        reply = await slave.next(peer)
        assert trio.current_time() - began < 2
        assert reply.code == ResponseCode.PULL_NOT_FOUND
        assert told(reply).suggest_which_broker_id == 0


async def test_acting_master_answers_pulls_and_offsets_and_no_sends(autojump_clock):
    async with slave_of(b"a", b"b", ha=ACTING) as slave:
        assert slave.ask(pull()).code == ResponseCode.SYSTEM_BUSY
        slave.broker.role.hear(min_broker_id=1)
        assert texts(slave.ask(pull())) == [b"a", b"b"]
        commit = headers.UpdateConsumerOffsetRequest("CG", "T", 0, 2)
        assert slave.ask(request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        query = headers.QueryConsumerOffsetRequest("CG", "T", 0)
        reply = slave.ask(request(RequestCode.QUERY_CONSUMER_OFFSET, query))
        assert headers.decode(headers.QueryConsumerOffsetReply, reply.ext).offset == 2
        assert slave.ask(send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
