"""Bodies as the peers write them, as other clients write them, and broken ones."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden_stores import NAMES, read_file
from trio_mq.errors import BodyError
from trio_mq.protocol import bodies, jsondialect
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.names import wire_name

MQ = MessageQueue("T", "b-a", 0)

# What the peer's 5.4.0 release writes, without blanks.
PEER_BODIES: list[tuple[type, bytes]] = [
    (
        bodies.HeartbeatData,
        b'{"clientID":"10.0.0.9@7#1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":'
        b'[{"classFilterMode":false,"codeSet":[97,98],"expressionType":"TAG","subString":"a || b",'
        b'"subVersion":1700000000000,"tagsSet":["a","b"],"topic":"T"}],"unitMode":false}],'
        b'"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"PG"}],"withoutSub":false}',
    ),
    (bodies.ConsumerIdList, b'{"consumerIdList":["10.0.0.9@7#1"]}'),
    (
        bodies.LockBatchBody,
        b'{"clientId":"c1","consumerGroup":"CG","mqSet":[{"brokerName":"b-a","queueId":0,"topic":"T"}],'
        b'"onlyThisBroker":false}',
    ),
    (bodies.LockBatchReplyBody, b'{"lockOKMQSet":[{"brokerName":"b-a","queueId":0,"topic":"T"}]}'),
    (
        bodies.CheckClientBody,
        b'{"clientId":"c","group":"CG","namespace":"","subscriptionData":{"classFilterMode":false,"codeSet":[],'
        b'"expressionType":"SQL92","subString":"a > 1","subVersion":1,"tagsSet":[],"topic":"T"}}',
    ),
    (
        bodies.QueryAssignmentBody,
        b'{"clientId":"c1","consumerGroup":"CG","messageModel":"CLUSTERING","strategyName":"AVG","topic":"T"}',
    ),
    (
        bodies.QueryAssignmentReplyBody,
        b'{"messageQueueAssignments":[{"messageQueue":{"brokerName":"b-a","queueId":-1,"topic":"T"},"mode":"POP"}]}',
    ),
    (
        bodies.SetMessageRequestModeBody,
        b'{"consumerGroup":"CG","mode":"POP","popShareQueueNum":0,"topic":"T"}',
    ),
    (
        bodies.BatchAckBody,
        b'{"acks":[{"b":"BQ==","c":"CG","it":60000,"pt":1700000000000,"q":0,"r":"0","rq":2,"so":5,"t":"T"}],'
        b'"brokerName":"b-a"}',
    ),
    (
        bodies.ConsumeMessageDirectlyResult,
        b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}',
    ),
    (
        bodies.ConsumerRunningInfo,
        b'{"mqPopTable":{},"mqTable":{{"brokerName":"b-a","queueId":0,"topic":"T"}:{"droped":false}},'
        b'"properties":{"PROP_CLIENT_VERSION":"V5_4_0"},"statusTable":{},"subscriptionSet":[],"userConsumerInfo":{}}',
    ),
    (
        bodies.ConsumerConnection,
        b'{"connectionSet":[{"clientAddr":"10.0.0.9:5000","clientId":"c1","language":"JAVA","version":493}],'
        b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_ACTIVELY",'
        b'"messageModel":"BROADCASTING","subscriptionTable":{}}',
    ),
    (bodies.ProducerConnection, b'{"connectionSet":[]}'),
    (
        bodies.ProducerTableInfo,
        b'{"data":{"PG":[{"clientId":"c","language":"JAVA","lastUpdateTimestamp":1,"remoteIP":"10.0.0.9","version":493}'
        b"]}}",
    ),
    (
        bodies.TopicRouteData,
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b-a","cluster":"c1",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b-a","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
    ),
    (
        bodies.ClusterInfo,
        b'{"brokerAddrTable":{"b-a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"b-a",'
        b'"cluster":"c1","enableActingMaster":false}},"clusterAddrTable":{"c1":["b-a"]}}',
    ),
    (bodies.TopicList, b'{"topicList":["T"]}'),
    (bodies.KVTable, b'{"table":{"T":"b-a:4"}}'),
    (
        bodies.GetBrokerMemberGroupReplyBody,
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b-a","cluster":"c1"}}',
    ),
    (bodies.DataVersion, b'{"counter":3,"stateVersion":0,"timestamp":1700000000000}'),
    (
        bodies.TopicConfigSerializeWrapper,
        b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1},"mappingDataVersion":{"counter":0,'
        b'"stateVersion":0,"timestamp":0},"topicConfigTable":{"T":{"attributes":{},"order":false,"perm":6,'
        b'"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":16}},'
        b'"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}',
    ),
    (
        bodies.SubscriptionGroupConfig,
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"CG",'
        b'"groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,'
        b'"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}',
    ),
    (
        bodies.ConsumerOffsetWrapper,
        b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{"T@CG":{0:5}}}',
    ),
    (bodies.ResetOffsetBody, b'{"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T"}:7}}'),
    (
        bodies.ConsumerStatusBody,
        b'{"consumerTable":{"c1":{{"brokerName":"b-a","queueId":0,"topic":"T"}:7}},"messageQueueTable":{}}',
    ),
    (
        bodies.TopicStatsTable,
        b'{"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":0,"maxOffset":9,'
        b'"minOffset":0}},"topicPutTps":0.0}',
    ),
    (
        bodies.ConsumeStats,
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T"}:{"brokerOffset":9,'
        b'"consumerOffset":7,"lastTimestamp":0,"pullOffset":8}}}',
    ),
    (
        bodies.BrokerStatsData,
        b'{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
        b'"statsMinute":{"avgpt":1.5,"sum":3,"tps":2.0}}',
    ),
    (bodies.GroupList, b'{"groupList":["CG"]}'),
]


@pytest.mark.parametrize(("cls", "data"), PEER_BODIES, ids=[cls.__name__ for cls, _ in PEER_BODIES])
def test_bodies_of_the_peer_are_read_and_written_alike(cls: type, data: bytes) -> None:
    value = bodies.decode(cls, data)
    assert type(value) is cls
    assert bodies.encode(value) == data


def test_values_have_their_types() -> None:
    found = bodies.decode(bodies.HeartbeatData, PEER_BODIES[0][1])
    (consumer,) = found.consumer_data_set
    (subscription,) = consumer.subscription_data_set
    assert found.client_id == "10.0.0.9@7#1"
    assert consumer.consume_type is bodies.ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is bodies.MessageModel.CLUSTERING
    assert subscription.code_set == frozenset({97, 98})
    assert subscription.tags_set == frozenset({"a", "b"})
    assert found.producer_data_set == (bodies.ProducerData("PG"),)


def test_the_route_in_plain_json() -> None:
    route = bodies.TopicRouteData(
        broker_datas=(bodies.BrokerData("c1", "b-a", {0: "h:1", 1: "h:2"}),)
    )
    written = bodies.encode(route, standard=True)
    assert json.loads(written)["brokerDatas"][0]["brokerAddrs"] == {"0": "h:1", "1": "h:2"}
    assert bodies.decode(bodies.TopicRouteData, written) == route


@pytest.mark.parametrize("name", NAMES)
def test_state_files_of_the_peer(name: str) -> None:
    topics = bodies.decode(
        bodies.TopicConfigSerializeWrapper, read_file(name, "config/topics.json")
    )
    assert topics.topic_config_table["TBW102"].perm == 7
    assert topics.topic_config_table["GoldBCQ"].attributes == {"queue.type": "BatchCQ"}
    groups = bodies.decode(
        bodies.SubscriptionGroupWrapper, read_file(name, "config/subscriptionGroup.json")
    )
    assert groups.subscription_group_table["GoldGroup"] == bodies.SubscriptionGroupConfig(
        "GoldGroup"
    )
    offsets = bodies.decode(
        bodies.ConsumerOffsetWrapper, read_file(name, "config/consumerOffset.json")
    )
    assert set(offsets.offset_table["GoldNormal@GoldGroup"]) == {0, 1, 2, 3}


# --- leniency


def test_a_heartbeat_of_the_go_client() -> None:
    data = json.dumps(
        {
            "clientID": "c",
            "producerDataSet": None,
            "consumerDataSet": [
                {
                    "groupName": "CG",
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "BroadCasting",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "subscriptionDataSet": [
                        {
                            "topic": "T",
                            "codeSet": ["97"],
                            "tagsSet": None,
                            "subVersion": 1_700_000_000_000_000_000,
                        }
                    ],
                    "unitMode": "false",
                    "another": {"x": 1},
                }
            ],
        }
    ).encode()
    found = bodies.decode(bodies.HeartbeatData, data)
    assert found.producer_data_set == ()
    assert found.heartbeat_fingerprint == 0
    assert found.consumer_data_set[0].message_model is bodies.MessageModel.BROADCASTING
    assert found.consumer_data_set[0].unit_mode is False
    (subscription,) = found.consumer_data_set[0].subscription_data_set
    assert subscription == bodies.SubscriptionData(
        "T", code_set=frozenset({97}), sub_version=1_700_000_000_000_000_000
    )


def test_quoted_and_unquoted_keys() -> None:
    found = bodies.decode(bodies.ConsumerOffsetWrapper, b'{"offsetTable":{"T@CG":{0:5,"1":"6"}}}')
    assert found.offset_table == {"T@CG": {0: 5, 1: 6}}
    assert bodies.decode(bodies.KVTable, b'{"table":{0:5,"1":true,"2":1.5}}').table == {
        "0": "5",
        "1": "true",
        "2": "1.5",
    }


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"counter":"7"}', 7),
        (b'{"counter":-7.0}', -7),
        (b'{"counter":null}', 0),
        (b"{}", 0),
        (b'{"counter":"-7"}', -7),
    ],
)
def test_integers(data: bytes, value: int) -> None:
    assert bodies.decode(bodies.DataVersion, data).counter == value


@pytest.mark.parametrize(
    ("text", "value"), [(b"1", True), (b"0", False), (b'"TRUE"', True), (b'"false"', False)]
)
def test_booleans(text: bytes, value: bool) -> None:
    found = bodies.decode(
        bodies.LockBatchBody, b'{"consumerGroup":"g","clientId":"c","onlyThisBroker":%b}' % text
    )
    assert found.only_this_broker is value


@pytest.mark.parametrize(("text", "value"), [(b"1", 1.0), (b'"2.5"', 2.5), (b"null", 0.0)])
def test_rates(text: bytes, value: float) -> None:
    assert (
        bodies.decode(bodies.TopicStatsTable, b'{"topicPutTps":%b}' % text).topic_put_tps == value
    )


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("BROADCASTING", bodies.MessageModel.BROADCASTING),
        ("BroadCasting", bodies.MessageModel.BROADCASTING),
        ("Clustering", bodies.MessageModel.CLUSTERING),
        ("Unknown", bodies.MessageModel.CLUSTERING),
        (None, bodies.MessageModel.CLUSTERING),
    ],
)
def test_names_in_any_case_and_unknown_ones(name: str | None, model: bodies.MessageModel) -> None:
    data = json.dumps({"groupName": "g", "messageModel": name}).encode()
    assert bodies.decode(bodies.ConsumerData, data).message_model is model
    found = bodies.decode(
        bodies.ConsumerConnection, b'{"consumeType":"OTHER","consumeFromWhere":"Unknown"}'
    )
    assert (found.consume_type, found.consume_from_where) == (None, None)


def test_null_in_a_map_is_left_out() -> None:
    assert bodies.decode(bodies.KVTable, b'{"table":{"a":null,"b":"c"}}').table == {"b": "c"}


def test_none_is_not_written_and_null_is_not_read() -> None:
    assert bodies.encode(bodies.QueryAssignmentReplyBody(None)) == b"{}"
    assert bodies.encode(bodies.QueryAssignmentReplyBody(())) == b'{"messageQueueAssignments":[]}'
    found = bodies.decode(bodies.QueryAssignmentReplyBody, b'{"messageQueueAssignments":null}')
    assert found.message_queue_assignments is None


# --- errors


@pytest.mark.parametrize(
    ("cls", "data", "problem"),
    [
        (bodies.HeartbeatData, b"", "JSON, character 0"),
        (bodies.HeartbeatData, b"[]", "HeartbeatData: an object is needed, not []"),
        (bodies.HeartbeatData, b"null", "HeartbeatData: an object is needed, not None"),
        (bodies.HeartbeatData, b"{}", "required field is missing @ HeartbeatData.client_id"),
        (
            bodies.HeartbeatData,
            b'{"clientID":[]}',
            "text is needed, not [] @ HeartbeatData.client_id",
        ),
        (bodies.TopicList, b'{"topicList":"abc"}', "topicList: a list is needed, not 'abc'"),
        (bodies.TopicList, b'{"topicList":{"a":1}}', "topicList: a list is needed"),
        (bodies.KVTable, b'{"table":[]}', "table: an object is needed"),
        (bodies.KVTable, b'{"table":{"a":{}}}', "text is needed, not {}"),
        (
            bodies.DataVersion,
            b'{"counter":"x"}',
            "a 64-bit integer is needed, not 'x' @ DataVersion.counter",
        ),
        (bodies.DataVersion, b'{"counter":1.5}', "a 64-bit integer is needed, not 1.5"),
        (bodies.DataVersion, b'{"counter":true}', "a 64-bit integer is needed, not True"),
        (bodies.DataVersion, b'{"counter":9223372036854775808}', "a 64-bit integer is needed"),
        (bodies.DataVersion, b'{"counter":"' + b"9" * 5000 + b'"}', "a 64-bit integer is needed"),
        (bodies.TopicStatsTable, b'{"topicPutTps":"fast"}', "a number is needed, not 'fast'"),
        (
            bodies.TopicStatsTable,
            b'{"offsetTable":{"T@b":{}}}',
            "topic, brokerName and queueId is needed, not 'T@b'",
        ),
        (
            bodies.TopicConfig,
            b'{"topicName":"T","order":"maybe"}',
            "true or false is needed, not 'maybe'",
        ),
        (bodies.TopicConfig, b'{"topicName":"T","order":2}', "true or false is needed, not 2"),
        (
            bodies.ConsumerData,
            b'{"groupName":"g","messageModel":1}',
            "messageModel: a name is needed, not 1",
        ),
        (
            bodies.LockBatchBody,
            b'{"clientId":"c","consumerGroup":"g","mqSet":[{"topic":"T","brokerName":"b"}]}',
            "an object with topic, brokerName and queueId is needed",
        ),
    ],
)
def test_errors_say_where_and_what(cls: type, data: bytes, problem: str) -> None:
    with pytest.raises(BodyError) as caught:
        bodies.decode(cls, data)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 300


def test_an_error_names_a_few_of_many_fields() -> None:
    data = json.dumps({"offsetTable": {"T@G": {str(i): "x" for i in range(1000)}}}).encode()
    with pytest.raises(BodyError, match=r"; and 997 more$"):
        bodies.decode(bodies.ConsumerOffsetWrapper, data)


# --- all classes

CLASSES = sorted(
    (
        cls
        for name in dir(bodies)
        if attrs.has(cls := getattr(bodies, name)) and cls is not MessageQueue
    ),
    key=lambda cls: cls.__name__,
)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
I64 = st.integers(-(2**63), 2**63 - 1)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation, as deep as it goes."""
    origin, args = get_origin(hint), get_args(hint)
    if type(None) in args:
        return st.none() | values_of(next(arg for arg in args if arg is not type(None)))
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=2).map(tuple)
    if origin is frozenset:
        return st.frozensets(values_of(args[0]), max_size=2)
    if origin is Mapping:
        values = values_of(args[1])
        # A map drops what is null, so null is no value of a map.
        return st.dictionaries(
            values_of(args[0]), values.filter(lambda item: item is not None), max_size=2
        )
    if attrs.has(hint):
        hints = get_type_hints(hint)
        return st.builds(
            hint, **{field.name: values_of(hints[field.name]) for field in attrs.fields(hint)}
        )
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXT,
        int: I64,
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        typing.Any: TEXT | I64 | st.lists(I64, max_size=2),
    }
    return simple[hint] if hint in simple else st.sampled_from(hint)


STRATEGIES = {cls: values_of(cls) for cls in CLASSES}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_round_trip(cls: type, data: st.DataObject) -> None:
    value = data.draw(STRATEGIES[cls])
    assert bodies.decode(cls, bodies.encode(value)) == value
    written = jsondialect.loads(bodies.encode(value))
    assert bodies.structure(cls, written) == value
    assert list(written) == sorted(written)


@given(
    cls=st.sampled_from(CLASSES),
    noise=st.recursive(
        st.none() | st.booleans() | I64 | TEXT | st.floats(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
        max_leaves=5,
    ),
    in_fields=st.booleans(),
)
def test_any_json_is_a_value_or_a_body_error(cls: type, noise: Any, in_fields: bool) -> None:
    names = [wire_name(field) for field in attrs.fields(cls)]
    try:
        value = bodies.structure(cls, dict.fromkeys(names, noise) if in_fields else noise)
    except BodyError:
        return
    assert isinstance(value, cls)
