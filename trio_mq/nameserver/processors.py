"""What a name server answers: typed request to reply, for each code that it knows.

In: calls from a :class:`RequestTable`. Out: replies, changes of the route table and of the
key-value settings, notices to brokers. Called by the handler of a listener. Source of the rules:
Apache DefaultRequestProcessor, ClientRequestProcessor, ZoneRouteRPCHook.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable

import attrs

from trio_mq.errors import RequestRefused
from trio_mq.nameserver import runtime
from trio_mq.nameserver.kv import ORDER_TOPIC_CONFIG, KVConfig
from trio_mq.nameserver.outcomes import (
    DEFAULT_TIMEOUT_S,
    MinBrokerChange,
    Refused,
    Registration,
)
from trio_mq.nameserver.routes import RouteTable
from trio_mq.net.requests import Call, Deferred, Peer, Reply, RequestTable
from trio_mq.protocol import bodies, headers
from trio_mq.protocol import command as commands
from trio_mq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode, TopicSysFlag
from trio_mq.protocol.command import Command

log = logging.getLogger("trio_mq.nameserver")

ZONE_NAME = "__ZONE_NAME"
ZONE_MODE = "__ZONE_MODE"
#: Requests of this version (4.9.4) and later get routes with integer keys in quotes.
STANDARD_JSON_VERSION = 401


class Processors:
    """All processors of a name server.

    `now_s` is a monotonic clock; `save` is called after a change of the key-value settings and
    decides when that call is answered.
    """

    def __init__(
        self,
        routes: RouteTable,
        kv: KVConfig,
        *,
        now_s: Callable[[], float],
        save: Callable[[Call], Reply | Deferred],
    ) -> None:
        self.routes = routes
        self.kv = kv
        #: When service began, None before.
        self.started_s: float | None = None
        self._now_s = now_s
        self._save = save

    def fill(self, table: RequestTable) -> None:
        """Add every processor to `table`."""
        add, code = table.add, RequestCode
        add(code.REGISTER_BROKER, headers.RegisterBrokerRequest, self._register)
        add(code.UNREGISTER_BROKER, headers.UnRegisterBrokerRequest, self._unregister)
        add(code.BROKER_HEARTBEAT, headers.BrokerHeartbeatRequest, self._heartbeat)
        add(code.QUERY_DATA_VERSION, headers.QueryDataVersionRequest, self._query_version)
        add(code.GET_BROKER_MEMBER_GROUP, headers.GetBrokerMemberGroupRequest, self._member_group)
        add(code.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequest, self._route)
        add(code.GET_BROKER_CLUSTER_INFO, None, self._cluster_info)
        add(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, self._all_topics)
        add(code.GET_TOPICS_BY_CLUSTER, headers.GetTopicsByClusterRequest, self._cluster_topics)
        add(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, None, self._system_topics)
        add(code.GET_UNIT_TOPIC_LIST, None, self._unit_topics)
        add(code.GET_HAS_UNIT_SUB_TOPIC_LIST, None, self._unit_sub_topics)
        add(code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, None, self._unit_sub_ununit_topics)
        add(code.DELETE_TOPIC_IN_NAMESRV, headers.DeleteTopicFromNamesrvRequest, self._delete_topic)
        add(code.REGISTER_TOPIC_IN_NAMESRV, headers.RegisterTopicRequest, self._register_topic)
        add(code.WIPE_WRITE_PERM_OF_BROKER, headers.WipeWritePermOfBrokerRequest, self._wipe)
        add(code.ADD_WRITE_PERM_OF_BROKER, headers.AddWritePermOfBrokerRequest, self._add_write)
        add(code.PUT_KV_CONFIG, headers.PutKVConfigRequest, self._put_kv)
        add(code.GET_KV_CONFIG, headers.GetKVConfigRequest, self._get_kv)
        add(code.DELETE_KV_CONFIG, headers.DeleteKVConfigRequest, self._delete_kv)
        add(code.GET_KVLIST_BY_NAMESPACE, headers.GetKVListByNamespaceRequest, self._list_kv)
        add(code.UPDATE_NAMESRV_CONFIG, None, self._update_config)
        add(code.GET_NAMESRV_CONFIG, None, self._get_config)

    # --- brokers

    def _register(self, call: Call, header: headers.RegisterBrokerRequest) -> Reply:
        body = _registration_body(call.command, header)
        timeout_ms = header.heartbeat_timeout_millis
        outcome = self.routes.register(
            Registration(
                cluster=header.cluster_name,
                broker_name=header.broker_name,
                broker_id=header.broker_id,
                address=header.broker_addr,
                ha_address=header.ha_server_addr,
                topics=body.topic_config_serialize_wrapper,
                filter_servers=body.filter_server_list,
                enable_acting_master=header.enable_acting_master,
                zone=call.command.ext.get(ZONE_NAME),
                timeout_s=DEFAULT_TIMEOUT_S if timeout_ms is None else timeout_ms / 1000,
            ),
            call.peer,
            self._now_s(),
        )
        if isinstance(outcome, Refused):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, outcome.reason)
        if outcome.ignored:
            log.warning(
                "registration of %s as id %d of %s ignored: another address holds the id with a "
                "higher state version",
                header.broker_addr,
                header.broker_id,
                header.broker_name,
            )
        self.notify(outcome.change)
        orders = None
        if self.routes.settings.return_order_topic_config_to_broker:
            orders = self.kv.namespace(ORDER_TOPIC_CONFIG)
        return Reply(
            header=headers.RegisterBrokerReply(outcome.ha_address, outcome.master_address),
            body=bodies.encode(bodies.KVTable(orders)) if orders else b"",
        )

    def _unregister(self, call: Call, header: headers.UnRegisterBrokerRequest) -> Reply:
        removed = self.routes.unregister(header.broker_name, header.broker_addr)
        if removed is not None:
            log.info("broker %s at %s unregistered", header.broker_name, header.broker_addr)
            self.notify(removed.change)
        return Reply()

    def _heartbeat(self, call: Call, header: headers.BrokerHeartbeatRequest) -> Reply:
        self.routes.heartbeat(header.broker_addr, self._now_s())
        return Reply()

    def _query_version(self, call: Call, header: headers.QueryDataVersionRequest) -> Reply:
        version = bodies.decode(bodies.DataVersion, call.command.body)
        changed, known = self.routes.compare_version(header.broker_addr, version, self._now_s())
        return Reply(
            header=headers.QueryDataVersionReply(changed),
            body=bodies.encode(known) if known is not None else b"",
        )

    def _member_group(self, call: Call, header: headers.GetBrokerMemberGroupRequest) -> Reply:
        group = self.routes.member_group(header.cluster_name, header.broker_name)
        return _reply(bodies.GetBrokerMemberGroupReplyBody(group))

    def notify(self, change: MinBrokerChange | None) -> None:
        """Tell brokers that the smallest id of their name changed, if the settings want it."""
        if change is None or not self.routes.settings.notify_min_broker_id_changed:
            return
        header = headers.NotifyMinBrokerIdChangeRequest(
            change.min_id,
            change.broker_name,
            change.min_address,
            change.offline_address,
            change.ha_address,
        )
        notice = commands.encode(
            Command(
                code=RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
                ext=headers.encode(header),
                flag=FLAG_ONEWAY,
            )
        )
        for peer in change.notify:
            _as_peer(peer).write(notice)

    # --- routes and lists

    def _route(self, call: Call, header: headers.GetRouteInfoRequest) -> Reply:
        self._check_ready()
        ext = call.command.ext
        zone = ext.get(ZONE_NAME) if ext.get(ZONE_MODE, "").lower() == "true" else None
        route = self.routes.route(header.topic, zone=zone or None)
        if route is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"no route for topic {header.topic}: no registered broker has it; create it, or "
                f"let brokers create it at the first send (autoCreateTopicEnable)",
            )
        if self.routes.settings.order_message_enable:
            order = self.kv.get(ORDER_TOPIC_CONFIG, header.topic)
            route = attrs.evolve(route, order_topic_conf=order)
        standard = (
            call.command.version >= STANDARD_JSON_VERSION
            or header.accept_standard_json_only is True
        )
        return Reply(body=bodies.encode(route, standard=standard))

    def _check_ready(self) -> None:
        """Some wait with the first routes until brokers had time to register."""
        settings = self.routes.settings
        if not settings.need_wait_for_service:
            return
        waited_s = self._now_s() - self.started_s if self.started_s is not None else 0.0
        if waited_s < settings.wait_seconds_for_service:
            left_s = settings.wait_seconds_for_service - waited_s
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"name server not ready: it waits {left_s:.0f} s more for brokers "
                f"(needWaitForService, waitSecondsForService)",
            )

    def _cluster_info(self, call: Call, header: None) -> Reply:
        return _reply(self.routes.cluster_info())

    def _all_topics(self, call: Call, header: None) -> Reply:
        if not self.routes.settings.enable_all_topic_list:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "disabled by enableAllTopicList")
        return _reply(self.routes.topics())

    def _cluster_topics(self, call: Call, header: headers.GetTopicsByClusterRequest) -> Reply:
        return self._topic_list(lambda: self.routes.topics_of_cluster(header.cluster))

    def _system_topics(self, call: Call, header: None) -> Reply:
        return _reply(self.routes.system_topics())

    def _unit_topics(self, call: Call, header: None) -> Reply:
        return self._topic_list(lambda: self.routes.topics_with_flags(TopicSysFlag.UNIT))

    def _unit_sub_topics(self, call: Call, header: None) -> Reply:
        return self._topic_list(lambda: self.routes.topics_with_flags(TopicSysFlag.UNIT_SUB))

    def _unit_sub_ununit_topics(self, call: Call, header: None) -> Reply:
        return self._topic_list(
            lambda: self.routes.topics_with_flags(TopicSysFlag.UNIT_SUB, TopicSysFlag.UNIT)
        )

    def _topic_list(self, make: Callable[[], bodies.TopicList]) -> Reply:
        if not self.routes.settings.enable_topic_list:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "disabled by enableTopicList")
        return _reply(make())

    # --- topics

    def _delete_topic(self, call: Call, header: headers.DeleteTopicFromNamesrvRequest) -> Reply:
        self.routes.delete_topic(header.topic, header.cluster_name)
        return Reply()

    def _register_topic(self, call: Call, header: headers.RegisterTopicRequest) -> Reply:
        if call.command.body:
            route = bodies.decode(bodies.TopicRouteData, call.command.body)
            unknown = self.routes.register_topic(header.topic, route.queue_datas)
            if unknown:
                names = ", ".join(sorted(unknown))
                log.warning("topic %s names unknown brokers, skipped: %s", header.topic, names)
        return Reply()

    def _wipe(self, call: Call, header: headers.WipeWritePermOfBrokerRequest) -> Reply:
        count = self.routes.wipe_write_perm(header.broker_name)
        log.info("%s wiped the write permission of %s", call.peer.address, header.broker_name)
        return Reply(header=headers.WipeWritePermOfBrokerReply(count))

    def _add_write(self, call: Call, header: headers.AddWritePermOfBrokerRequest) -> Reply:
        count = self.routes.add_write_perm(header.broker_name)
        log.info("%s added the write permission of %s", call.peer.address, header.broker_name)
        return Reply(header=headers.AddWritePermOfBrokerReply(count))

    # --- key-value settings

    def _put_kv(self, call: Call, header: headers.PutKVConfigRequest) -> Reply | Deferred:
        self.kv.put(header.namespace, header.key, header.value)
        return self._save(call)

    def _get_kv(self, call: Call, header: headers.GetKVConfigRequest) -> Reply:
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            raise RequestRefused(
                ResponseCode.QUERY_NOT_FOUND,
                f"no setting {header.key} in namespace {header.namespace}",
            )
        return Reply(header=headers.GetKVConfigReply(value))

    def _delete_kv(self, call: Call, header: headers.DeleteKVConfigRequest) -> Reply | Deferred:
        if self.kv.delete(header.namespace, header.key):
            return self._save(call)
        return Reply()

    def _list_kv(self, call: Call, header: headers.GetKVListByNamespaceRequest) -> Reply:
        table = self.kv.namespace(header.namespace)
        if table is None:
            raise RequestRefused(
                ResponseCode.QUERY_NOT_FOUND, f"no setting in namespace {header.namespace}"
            )
        return _reply(bodies.KVTable(table))

    # --- settings of the process

    def _update_config(self, call: Call, header: None) -> Reply:
        if call.command.body:
            self.routes.settings = runtime.change(self.routes.settings, call.command.body)
            log.info("%s changed settings", call.peer.address)
        return Reply()

    def _get_config(self, call: Call, header: None) -> Reply:
        return Reply(body=runtime.show(self.routes.settings))


def _reply(body: object) -> Reply:
    return Reply(body=bodies.encode(body))


def _as_peer(token: object) -> Peer:
    """Tokens are opaque to the route table; those that it got from here are peers."""
    peer: Peer = token  # type: ignore[assignment]
    return peer


def _registration_body(
    command: Command, header: headers.RegisterBrokerRequest
) -> bodies.RegisterBrokerBody:
    if header.body_crc32:
        crc = zlib.crc32(command.body) & 0x7FFFFFFF
        if crc != header.body_crc32:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"crc32 not match: the body has {crc}, its header says {header.body_crc32}",
            )
    if not command.body:
        return bodies.RegisterBrokerBody()
    # A 5.4 broker that compresses (compressedRegister) says that it does not; no JSON begins with
    # x.
    if header.compressed or command.body.startswith(b"x"):
        return bodies.decode_compressed(command.body, command.version)
    return bodies.decode(bodies.RegisterBrokerBody, command.body)
