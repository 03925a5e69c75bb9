"""When a send is tried again, and what is told at the end."""

import pytest

from trio_mq import Message, MessageQueue, PeerRefused, PeerUnavailable, SendFailed, SendStatus
from trio_mq.client.outgoing import Limits, prepare
from trio_mq.client.tries import RETRY_CODES, Sent, Tries, receipt_of
from trio_mq.config.addresses import Address
from trio_mq.errors import HeaderError
from trio_mq.protocol.command import Command

ADDRESS = Address("b1", 10911)
OUTGOING = prepare(Message("T", b"x"), Limits(), 1_700_000_000_000)
ANSWER = {"msgId": "0A000001" + "0" * 24, "queueId": "2", "queueOffset": "7"}


def tries(**others):
    return Tries(OUTGOING, 3, 100.0, 3.0, **others)


def refused(code):
    return PeerRefused(code, "why", address="b1:10911", what="SEND")


def sent(code=0):
    return Sent(receipt_of(Command(code, ANSWER), OUTGOING, "b1", ADDRESS), ADDRESS)


def test_codes_that_are_tried_again_are_those_of_java():
    assert sorted(RETRY_CODES) == [1, 2, 14, 16, 17, 204, 205, 1500]


@pytest.mark.parametrize("code", sorted(RETRY_CODES))
def test_a_retry_code_is_noted(code):
    state = tries()
    state.failed("b1", refused(code))
    assert state.failed_broker == "b1"
    assert state.another(101.0)


@pytest.mark.parametrize("code", [3, 13, 29, 26, 215, 4])
def test_other_codes_are_raised_at_once(code):
    with pytest.raises(PeerRefused, match=f"code {code}"):
        tries().failed("b1", refused(code))


def test_the_time_is_for_all_tries():
    state = tries()
    assert state.left_s(101.0) == 2.0
    assert state.another(102.9)
    assert not state.another(103.0)
    assert state.left_s(105.0) > 0


def test_no_try_is_left_after_the_last():
    state = tries()
    state.left = 0
    assert not state.another(100.0)


def test_the_error_tells_every_try_address_topic_and_next_step():
    state = tries()
    state.failed("b1", PeerUnavailable("b1:10911: cannot connect"))
    state.failed("b2", refused(14))
    with pytest.raises(SendFailed) as caught:
        state.result(101.5)
    text = str(caught.value)
    for part in ("topic T", OUTGOING.message_id, "in 2 tries and 1.5 s", "b1:10911: cannot connect",
                 "code 14: why", "send it again"):  # fmt: skip
        assert part in text
    assert [type(failure) for failure in caught.value.failures] == [PeerUnavailable, PeerRefused]
    assert caught.value.code == 14


@pytest.mark.parametrize("code", [10, 11, 12])
def test_a_status_is_a_success_unless_another_broker_shall_be_tried(code):
    assert tries().done(sent(code))
    state = tries(insists_on_ok=True)
    assert not state.done(sent(code))
    assert state.failed_broker == "b1", (
        "the next try is at another one, even if there is time for no more"
    )
    assert state.done(sent(0))


def test_a_stored_message_wins_over_later_failures():
    state = tries(insists_on_ok=True)
    state.done(sent(10))
    state.failed("b2", refused(2))
    assert state.result(101.0).receipt.status is SendStatus.FLUSH_DISK_TIMEOUT


def test_a_receipt_has_all_that_the_broker_told():
    reply = Command(0, {**ANSWER, "transactionId": "X", "recallHandle": "h"})
    receipt = receipt_of(reply, OUTGOING, "b1", ADDRESS)
    assert receipt.message_id == OUTGOING.message_id
    assert receipt.offset_message_id == ANSWER["msgId"]
    assert receipt.queue == MessageQueue("T", "b1", 2)
    assert (receipt.queue_offset, receipt.transaction_id, receipt.recall_handle) == (7, "X", "h")
    batch = receipt_of(Command(0, {**ANSWER, "batchUniqId": "B"}), OUTGOING, "b1", ADDRESS)
    assert batch.message_id == "B"


def test_a_refusal_names_the_broker_and_the_topic():
    with pytest.raises(
        PeerRefused, match=r"b1:10911 refused SEND_MESSAGE_V2 \(310\) for topic T with code 13: big"
    ):
        receipt_of(Command(13, remark="big"), OUTGOING, "b1", ADDRESS)


@pytest.mark.parametrize("broken", [{"queueId": "x"}, {"queueOffset": None}, {"msgId": None}])
def test_an_answer_that_cannot_be_read_is_the_peers_fault(broken):
    ext = {name: text for name, text in {**ANSWER, **broken}.items() if text is not None}
    with pytest.raises(HeaderError, match=next(iter(broken))):
        receipt_of(Command(0, ext), OUTGOING, "b1", ADDRESS)


def test_the_log_offset_comes_from_the_offset_id():
    reply = Command(0, {**ANSWER, "msgId": "0A00000100002A9F00000000000004D2"})
    assert Sent(receipt_of(reply, OUTGOING, "b1", ADDRESS), ADDRESS).log_offset == 1234
