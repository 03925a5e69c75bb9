"""Each request code of the name server, from a command to the bytes of its reply."""

import json
import zlib

import pytest

from trio_mq.config.nameserver import NameServerSettings
from trio_mq.nameserver.nameserver import NameServer
from trio_mq.protocol import bodies, headers
from trio_mq.protocol import command as commands
from trio_mq.protocol.bodies import (
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)
from trio_mq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader
from trio_mq.testing.links import MemoryPeer

A, B = "10.0.0.1:10911", "10.0.0.2:10911"
TOPICS = {"T": TopicConfig("T", 4, 4, 6), "TBW102": TopicConfig("TBW102", 8, 8, 7)}
VERSION = DataVersion(3, 0, 1_700_000_000_000)
BODY = bodies.encode(RegisterBrokerBody(TopicConfigSerializeWrapper(TOPICS, VERSION)))


class Time:
    """A monotonic clock that stands still until it is told."""

    now_s = 1000.0

    def __call__(self):
        return self.now_s


class Server:
    """A name server, and what it answers on each of its connections."""

    def __init__(self, **settings):
        self.time = Time()
        self.server = NameServer(NameServerSettings(**settings), now_s=self.time)

    def ask(self, code, header=None, body=b"", peer=None, **fields):
        """The reply to one request, None when there is none."""
        peer = peer or MemoryPeer()
        ext = dict(headers.encode(header)) if header is not None else {}
        ext |= fields.pop("ext", {})
        request = Command(code=code, ext=ext, body=body, opaque=7, **fields)
        already = len(peer.written)
        frames = FrameReader().feed(commands.encode(request))
        self.server.received(peer, frames)
        replies = [commands.decode(f) for f in FrameReader().feed(b"".join(peer.written[already:]))]
        assert len(replies) <= 1
        return replies[0] if replies else None

    def register(self, address=A, broker_id=0, name="b-a", cluster="c1", body=BODY, **fields):
        """Register a broker over a connection of its own; the reply and the connection."""
        peer = MemoryPeer()
        ext = fields.pop("ext", {})
        version = fields.pop("version", 493)
        header = headers.RegisterBrokerRequest(
            name, address, cluster, address.replace("10911", "10912"), broker_id, **fields
        )
        code = RequestCode.REGISTER_BROKER
        return self.ask(code, header, body, peer, ext=ext, version=version), peer

    def route(self, topic="T", **fields):
        header = headers.GetRouteInfoRequest(topic)
        return self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, **fields)


def notices(peer):
    return [commands.decode(frame) for frame in FrameReader().feed(b"".join(peer.written))]


# --- registration


def test_register_answers_success_without_a_body():
    reply, _ = Server().register(body_crc32=zlib.crc32(BODY) & 0x7FFFFFFF)
    assert (reply.code, reply.opaque, reply.flag, reply.body) == (0, 7, 1, b"")


def test_register_with_a_wrong_checksum_is_refused():
    server = Server()
    reply, _ = server.register(body_crc32=12345)
    assert reply.code == 1
    assert "12345" in reply.remark
    assert server.route().code == 17


def test_slave_is_told_master_and_ha_address():
    server = Server()
    server.register()
    reply, _ = server.register(B, 1)
    assert reply.ext == {"masterAddr": A, "haServerAddr": "10.0.0.1:10912"}


def test_register_hands_out_order_configurations():
    server = Server()
    server.ask(100, headers.PutKVConfigRequest("ORDER_TOPIC_CONFIG", "T", "b-a:4"))
    reply, _ = server.register()
    assert reply.body == b'{"table":{"T":"b-a:4"}}'
    server.ask(318, body=b"returnOrderTopicConfigToBroker=false")
    assert server.register()[0].body == b""


def test_register_with_one_topic_first_is_refused_with_the_reason():
    body = bodies.encode(
        RegisterBrokerBody(TopicConfigSerializeWrapper({"T": TOPICS["T"]}, VERSION))
    )
    reply, _ = Server().register(body=body)
    assert reply.code == 1
    assert "exactly one topic" in reply.remark


def test_register_without_a_body_is_taken():
    reply, _ = Server().register(body=b"")
    assert reply.code == 0


@pytest.mark.parametrize("announced", [True, False])
def test_register_reads_a_compressed_body_even_when_it_is_not_announced(announced):
    def piece(text):
        data = text.encode()
        return len(data).to_bytes(4, "big") + data

    plain = b"".join(
        (
            piece('{"counter":3,"stateVersion":0,"timestamp":1700000000000}'),
            (2).to_bytes(4, "big"),
            piece("T 4 4 6 SINGLE_TAG {}"),
            piece("U 2 2 6 SINGLE_TAG {}"),
            piece("[]"),
            (0).to_bytes(4, "big"),
        )
    )
    server = Server()
    reply, _ = server.register(body=zlib.compress(plain), compressed=announced)
    assert reply.code == 0
    assert server.route("U").code == 0


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"topicConfigSerializeWrapper":7}'])
def test_register_with_a_body_that_does_not_parse_is_an_error_of_that_request(body):
    server = Server()
    reply, peer = server.register(body=body)
    assert reply.code == 1
    assert not peer.closed
    assert server.register(body=b"x", compressed=True)[0].code == 1
    assert server.register()[0].code == 0


def test_missing_field_is_named():
    reply = Server().ask(RequestCode.REGISTER_BROKER, ext={"brokerName": "b-a"})
    assert reply.code == 1
    assert "brokerAddr" in reply.remark


def test_heartbeat_timeout_of_the_header_counts():
    server = Server()
    _, short = server.register(A, name="b-a", heartbeat_timeout_millis=10_000)
    _, plain = server.register(B, name="b-b")
    server.time.now_s += 9
    beat = headers.BrokerHeartbeatRequest("c1", A, "b-a")
    assert server.ask(RequestCode.BROKER_HEARTBEAT, beat).code == 0
    server.time.now_s += 9
    server.server.expire()
    assert not short.closed
    server.time.now_s += 2
    server.server.expire()
    assert short.closed
    assert not plain.closed
    assert [q["brokerName"] for q in json.loads(server.route().body)["queueDatas"]] == ["b-b"]


def test_heartbeat_of_an_unknown_broker_is_answered():
    beat = headers.BrokerHeartbeatRequest("c1", A, "b-a")
    assert Server().ask(RequestCode.BROKER_HEARTBEAT, beat).code == 0


def test_unregister():
    server = Server()
    server.register()
    header = headers.UnRegisterBrokerRequest("b-a", A, "c1", 0)
    for _ in range(2):
        assert server.ask(RequestCode.UNREGISTER_BROKER, header).code == 0
    assert server.route().code == 17


def test_query_data_version():
    server = Server()
    header = headers.QueryDataVersionRequest("b-a", A, "c1", 0)
    reply = server.ask(RequestCode.QUERY_DATA_VERSION, header, bodies.encode(VERSION))
    assert (reply.ext, reply.body) == ({"changed": "true"}, b"")
    server.register()
    reply = server.ask(RequestCode.QUERY_DATA_VERSION, header, bodies.encode(VERSION))
    assert reply.ext == {"changed": "false"}
    assert reply.body == b'{"counter":3,"stateVersion":0,"timestamp":1700000000000}'


def test_c101_close_of_an_old_connection_keeps_the_route():
    server = Server()
    _, old = server.register()
    _, new = server.register()
    server.server.disconnected(old)
    assert server.route().code == 0
    server.server.disconnected(new)
    assert server.route().code == 17


def test_min_broker_id_notice_is_one_way_and_only_sent_when_wanted():
    for wanted in (True, False):
        server = Server(notify_min_broker_id_changed=wanted)
        _, slave = server.register(B, 1)
        server.register(A, 0)
        got = notices(slave)[1:]  # the first is the answer to its registration
        assert len(got) == (1 if wanted else 0)
        if wanted:
            assert (got[0].code, got[0].flag) == (905, FLAG_ONEWAY)
            assert got[0].ext == {
                "minBrokerId": "0",
                "brokerName": "b-a",
                "minBrokerAddr": A,
                "haBrokerAddr": "10.0.0.1:10912",
            }


def test_min_broker_id_notice_after_a_close_and_an_unregistration():
    server = Server(notify_min_broker_id_changed=True)
    _, master = server.register(A, 0)
    _, slave = server.register(B, 1)
    server.server.disconnected(master)
    server.register(A, 0)
    server.ask(RequestCode.UNREGISTER_BROKER, headers.UnRegisterBrokerRequest("b-a", A, "c1", 0))
    offline = [notice.ext.get("offlineBrokerAddr") for notice in notices(slave)[1:]]
    assert offline == [A, None, A]


def test_all_that_are_left_hear_of_a_lost_smallest_id_and_the_others_of_a_smaller_one():
    server = Server(notify_min_broker_id_changed=True)
    peers = {number: server.register(f"10.0.0.{number}:10911", number)[1] for number in (3, 1, 2)}
    told = {number: [n.ext for n in notices(peer)[1:]] for number, peer in peers.items()}
    assert [len(told[number]) for number in (3, 1, 2)] == [1, 0, 0], "1 came after 3; 2 is not it"
    server.server.disconnected(peers[1])
    for number in (2, 3):
        (notice,) = [n.ext for n in notices(peers[number])[-1:]]
        assert notice == {
            "minBrokerId": "2",
            "brokerName": "b-a",
            "minBrokerAddr": "10.0.0.2:10911",
            "offlineBrokerAddr": "10.0.0.1:10911",
        }
    server.server.disconnected(peers[3])
    assert len(notices(peers[2])) <= 2, "a larger id that goes is no news"


# --- routes


def test_route_for_clients_of_4_9_4_and_later_is_plain_json():
    server = Server()
    server.register()
    assert server.route(version=401).body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"b-a","cluster":"c1",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b-a",'
        b'"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_route_for_older_clients_has_integer_keys():
    server = Server()
    server.register()
    assert b'"brokerAddrs":{0:"10.0.0.1:10911"}' in server.route(version=317).body
    asked = server.route(version=317, ext={"acceptStandardJsonOnly": "true"})
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in asked.body


def test_c103_unknown_topic_says_how_to_create_it():
    reply = Server().route("NEW")
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert "NEW" in reply.remark
    assert "create" in reply.remark


def test_order_configuration_is_in_the_route_when_enabled():
    for enabled in (False, True):
        server = Server(order_message_enable=enabled)
        server.register()
        server.ask(100, headers.PutKVConfigRequest("ORDER_TOPIC_CONFIG", "T", "b-a:4;b-b:4"))
        route = json.loads(server.route().body)
        assert route.get("orderTopicConf") == ("b-a:4;b-b:4" if enabled else None)


def test_routes_wait_for_brokers_when_asked_to():
    server = Server(need_wait_for_service=True)
    server.register()
    server.server._processors.started_s = server.time.now_s
    server.time.now_s += 44
    reply = server.route()
    assert reply.code == 1
    assert "needWaitForService" in reply.remark
    server.time.now_s += 1
    assert server.route().code == 0


def test_zone_of_broker_and_client_come_from_the_header():
    server = Server()
    server.register(A, name="near", ext={"__ZONE_NAME": "z1"})
    server.register(B, name="far", ext={"__ZONE_NAME": "z2"})
    zone = {"__ZONE_MODE": "true", "__ZONE_NAME": "z1"}
    assert [b["brokerName"] for b in json.loads(server.route(ext=zone).body)["brokerDatas"]] == [
        "near"
    ]
    for ext in (
        {"__ZONE_NAME": "z1"},
        {"__ZONE_MODE": "true"},
        {"__ZONE_MODE": "true", "__ZONE_NAME": ""},
    ):
        assert len(json.loads(server.route(ext=ext).body)["brokerDatas"]) == 2


def test_cluster_info():
    server = Server()
    server.register()
    assert server.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body == (
        b'{"brokerAddrTable":{"b-a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b-a",'
        b'"cluster":"c1","enableActingMaster":false}},"clusterAddrTable":{"c1":["b-a"]}}'
    )


def test_member_group():
    server = Server()
    server.register()
    header = headers.GetBrokerMemberGroupRequest("c1", "b-a")
    assert server.ask(RequestCode.GET_BROKER_MEMBER_GROUP, header).body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b-a","cluster":"c1"}}'
    )


def test_topic_lists():
    server = Server()
    server.register()
    assert json.loads(server.ask(206).body)["topicList"] == ["T", "TBW102"]
    by_cluster = server.ask(224, headers.GetTopicsByClusterRequest("c1"))
    assert json.loads(by_cluster.body)["topicList"] == ["T", "TBW102"]
    assert json.loads(server.ask(304).body) == {"brokerAddr": A, "topicList": ["c1", "b-a"]}
    for code in (311, 312, 313):
        assert json.loads(server.ask(code).body) == {"topicList": []}


def test_topic_lists_can_be_disabled():
    server = Server(enable_all_topic_list=False, enable_topic_list=False)
    assert "enableAllTopicList" in server.ask(206).remark
    for code, header in (
        (224, headers.GetTopicsByClusterRequest("c1")),
        (311, None),
        (312, None),
        (313, None),
    ):
        reply = server.ask(code, header)
        assert reply.code == 1
        assert "enableTopicList" in reply.remark


def test_write_permission_wiped_and_given_back():
    server = Server()
    server.register()
    assert server.ask(205, headers.WipeWritePermOfBrokerRequest("b-a")).ext == {
        "wipeTopicCount": "2"
    }
    assert json.loads(server.route().body)["queueDatas"][0]["perm"] == 4
    assert server.ask(327, headers.AddWritePermOfBrokerRequest("b-a")).ext == {"addTopicCount": "2"}
    assert json.loads(server.route().body)["queueDatas"][0]["perm"] == 6


def test_topic_deleted_and_registered_again():
    server = Server()
    server.register()
    assert server.ask(216, headers.DeleteTopicFromNamesrvRequest("T")).code == 0
    assert server.route().code == 17
    body = bodies.encode(TopicRouteData((QueueData("b-a", 1, 1, 6), QueueData("b-x", 1, 1, 6))))
    assert server.ask(217, headers.RegisterTopicRequest("T"), body).code == 0
    assert [q["brokerName"] for q in json.loads(server.route().body)["queueDatas"]] == ["b-a"]
    assert server.ask(217, headers.RegisterTopicRequest("T")).code == 0


# --- key-value settings


def test_kv_settings():
    server = Server()
    get = headers.GetKVConfigRequest("NS", "k")
    assert server.ask(101, get).code == ResponseCode.QUERY_NOT_FOUND
    assert server.ask(219, headers.GetKVListByNamespaceRequest("NS")).code == 22
    assert server.ask(100, headers.PutKVConfigRequest("NS", "k", "v")).code == 0
    assert server.ask(101, get).ext == {"value": "v"}
    assert server.ask(219, headers.GetKVListByNamespaceRequest("NS")).body == b'{"table":{"k":"v"}}'
    for _ in range(2):
        assert server.ask(102, headers.DeleteKVConfigRequest("NS", "k")).code == 0
    assert server.ask(101, get).code == 22


def test_kv_without_namespace_or_key_is_refused():
    server = Server()
    for ext in ({"key": "k", "value": "v"}, {"namespace": "NS", "value": "v"}):
        assert server.ask(100, ext=ext).code == 1


# --- settings


def test_settings_are_shown_and_changed():
    server = Server()
    shown = server.ask(319).body.decode().splitlines()
    assert "scanNotActiveBrokerInterval=5000" in shown
    assert "orderMessageEnable=false" in shown
    assert server.ask(318, body=b"orderMessageEnable=true\nunknownKey=1\n").code == 0
    assert "orderMessageEnable=true" in server.ask(319).body.decode()
    assert server.server.routes.settings.order_message_enable
    assert server.ask(318).code == 0


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (b"kvConfigPath=/etc/passwd", 16, "kvConfigPath"),
        (b"configStorePath=/etc/passwd", 16, "configStorePath"),
        (b"rocketmqHome=/", 16, "rocketmqHome"),
        (b"configBlackList=", 16, "configBlackList"),
        (b"nameserverListen=0.0.0.0:1", 16, "restart"),
        (b"scanNotActiveBrokerInterval=soon", 29, "scanNotActiveBrokerInterval=soon"),
        (b"scanNotActiveBrokerInterval=0", 29, "legal is"),
        (b"\\u12", 29, "UPDATE_NAMESRV_CONFIG"),
    ],
)
def test_settings_that_cannot_be_changed_are_refused_as_a_whole(line, code, says):
    server = Server()
    reply = server.ask(318, body=b"orderMessageEnable=true\n" + line)
    assert reply.code == code
    assert says in reply.remark
    assert not server.server.routes.settings.order_message_enable


# --- the rest


def test_unknown_code_is_named():
    reply = Server().ask(10)
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "10" in reply.remark


def test_one_way_requests_are_never_answered():
    server = Server()
    assert server.ask(10, flag=FLAG_ONEWAY) is None
    assert server.ask(206, flag=FLAG_ONEWAY) is None


def test_replies_of_a_peer_are_not_requests():
    assert Server().ask(206, flag=1) is None


def test_header_that_does_not_parse_closes_the_connection():
    server = Server()
    peer = MemoryPeer()
    server.server.received(peer, [(0, b"{nope", b"")])
    assert peer.closed


def test_every_code_of_the_name_server_has_a_processor():
    expected = [100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304]
    expected += [311, 312, 313, 318, 319, 322, 327, 901, 904]
    assert Server().server.requests.codes == expected
