"""What a slave answers and what it refuses: the same codes from slaves of both kinds."""

from __future__ import annotations

import json
import time

import pytest

from tests.interop.java_client import Java, texts
from tests.interop.polling import wait_for
from tests.interop.raw import RawClient

from .conftest import MakeTopic
from .pairs import Pair, knows_topic

SEND, PULL, SEND_BACK, END_TRANSACTION, RECALL, RESET = 10, 11, 36, 37, 370, 222
#: Codes by request. Pops are left out: Apache's slave hands them out and forgets them, ours refuses.
REFUSED = {SEND: 2, SEND_BACK: 2, END_TRANSACTION: 11, RECALL: 16, RESET: 1}


def fields_of(topic: str) -> dict[int, dict[str, str]]:
    """A legal request of each code."""
    return {
        SEND: {
            "producerGroup": "PG", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
            "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "reconsumeTimes": "0",
            "unitMode": "false", "batch": "false", "properties": "",
        },
        SEND_BACK: {"offset": "0", "group": "CG", "delayLevel": "0"},
        END_TRANSACTION: {
            "producerGroup": "PG", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8",
            "fromTransactionCheck": "false", "msgId": "x", "transactionId": "x", "topic": topic,
        },
        RECALL: {"producerGroup": "PG", "topic": topic, "recallHandle": "x"},
        RESET: {"topic": topic, "group": "CG", "timestamp": "-1", "isForce": "true"},
    }  # fmt: skip


def pull(client: RawClient, topic: str, offset: int, wait_ms: int) -> tuple[int, dict[str, str]]:
    """Code and header of the answer."""
    reply = client.call(
        PULL,
        {
            "consumerGroup": "CG", "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
            "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": str(wait_ms), "subscription": "*",
            "subVersion": "1", "expressionType": "TAG",
        },
    )  # fmt: skip
    return reply.code, reply.ext


@pytest.mark.mixed
def test_what_a_slave_refuses_and_answers(pair: Pair, java: Java, topic: MakeTopic) -> None:
    name = topic(pair, 1)
    java.producer(pair.ns).send_ok(texts(name, 5))
    pair.wait_caught_up()
    wait_for(lambda: knows_topic(pair.slave.address, name), "the slave has the topic", timeout_s=80)
    with RawClient(pair.slave.address) as client:
        codes = {
            code: client.call(code, fields, b"x" if code == SEND else b"").code
            for code, fields in fields_of(name).items()
        }
        assert codes == REFUSED
        assert pull(client, name, 0, 0)[0] == 0
        began = time.monotonic()
        code, told = pull(client, name, 5, 1000)
        assert (code, told["suggestWhichBrokerId"]) == (19, "0")
        assert time.monotonic() - began > 0.9, "at the end a reader waits"
        code, told = pull(client, name, 50, 1000)
        assert (code, told["nextBeginOffset"]) == (20, "50"), "elsewhere it is sent away"
        place = {"topic": name, "queueId": "0"}
        assert client.call(30, place).ext["offset"] == "5"
        assert client.call(31, place).ext["offset"] == "0"
        assert client.call(29, {**place, "timestamp": "1"}).ext["offset"] == "0"
        commit = {**place, "consumerGroup": "CG", "commitOffset": "3"}
        assert client.call(15, commit).code == 0
        assert client.call(14, {**place, "consumerGroup": "CG"}).ext["offset"] == "3"
        lock = {
            "clientId": "c", "consumerGroup": "CG", "onlyThisBroker": False,
            "mqSet": [{"brokerName": pair.name, "queueId": 0, "topic": name}],
        }  # fmt: skip
        assert len(client.call(41, {}, json.dumps(lock).encode()).json()["lockOKMQSet"]) == 1
