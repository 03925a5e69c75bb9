"""What name servers are told of a broker: its registration, whole or in parts, its sign of life, its farewell.

In: settings and the table of topics. Out: requests. Pure. Called by :mod:`.register`. Source of the rules: Apache
BrokerController.registerBrokerAll, BrokerOuterAPI.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

import attrs

from trio_mq.broker.role import MASTER_ID
from trio_mq.broker.topics import TopicTable
from trio_mq.config import Address, BrokerSettings
from trio_mq.config.ha import HASettings
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from trio_mq.protocol.codes import Perm, RequestCode
from trio_mq.protocol.command import Command

#: Up to this many topics, a change is told with the whole table: a few milliseconds of work. Above,
#: only the changed topics are sent.
WHOLE_TABLE_TOPICS: Final = 200


class Registrations:
    """Requests of one broker to name servers; `address` and `ha_address` are what others connect to."""

    def __init__(
        self,
        settings: BrokerSettings,
        ha: HASettings,
        topics: TopicTable,
        *,
        address: Address,
        ha_address: str,
    ) -> None:
        self._settings = settings
        self._ha = ha
        self._topics = topics
        self.address = address
        self.ha_address = ha_address
        self._bodies: tuple[tuple[DataVersion, int], list[bytes]] | None = None

    def changes(self, changed: set[str] | None) -> list[Command]:
        """What tells a name server all topics, or only those that changed when the table is large."""
        present = self._only_changed(changed)
        if present is None:
            return [self._registration(body) for body in self._whole_bodies()]
        # That request knows no broker ids: from a slave it would stand for the master.
        if self._settings.enable_single_topic_register and self._settings.broker_id == MASTER_ID:
            return [self._single(config) for config in present.values()]
        return [self._registration(self._encode(self._topics.wrapper(present)))]

    def _single(self, config: TopicConfig) -> Command:
        """REGISTER_TOPIC_IN_NAMESRV: one topic, and no word about the others."""
        config = _limited(config, self._settings.broker_permission)
        queues = bodies.QueueData(
            broker_name=self._settings.broker_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_sys_flag=config.topic_sys_flag,
        )
        return Command(
            code=RequestCode.REGISTER_TOPIC_IN_NAMESRV,
            ext=headers.encode(headers.RegisterTopicRequest(config.topic_name)),
            body=bodies.encode(bodies.TopicRouteData(queue_datas=(queues,))),
        )

    def _registration(self, body: bytes) -> Command:
        """REGISTER_BROKER with some or all topics."""
        header = headers.RegisterBrokerRequest(
            broker_name=self._settings.broker_name,
            broker_addr=str(self.address),
            cluster_name=self._settings.cluster,
            ha_server_addr=self.ha_address,
            broker_id=self._settings.broker_id,
            enable_acting_master=self._ha.enable_slave_acting_master,
            heartbeat_timeout_millis=self._not_active_ms,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        return Command(code=RequestCode.REGISTER_BROKER, ext=headers.encode(header), body=body)

    def _only_changed(self, changed: set[str] | None) -> dict[str, TopicConfig] | None:
        """The changed topics of a large table; None where everything has to be told."""
        if not changed or len(self._topics) <= WHOLE_TABLE_TOPICS:
            return None
        found = {topic: self._topics.get(topic) for topic in changed}
        present = {topic: config for topic, config in found.items() if config is not None}
        return present if len(present) == len(found) else None  # what is gone is seen in the whole

    def _whole_bodies(self) -> list[bytes]:
        """All topics, encoded once for all name servers and until the table changes; in pieces when that is set."""
        assert len(self._topics) >= 2, "a first registration with one topic counts as an update"
        state = self._topics.version, self._topics.revision  # what a slave makes has no version
        if self._bodies is None or self._bodies[0] != state:
            self._bodies = state, [self._encode(w) for w in self._pieces()]
        return self._bodies[1]

    def _pieces(self) -> Iterator[TopicConfigSerializeWrapper]:
        size = self._settings.split_registration_size
        if not self._settings.enable_split_registration or len(self._topics) <= size:
            yield self._topics.wrapper()
            return
        for start in range(0, len(self._topics), size):
            yield self._topics.wrapper(self._topics.page(start, size))

    def _encode(self, wrapper: TopicConfigSerializeWrapper) -> bytes:
        allowed = self._settings.broker_permission
        if allowed & (Perm.READ | Perm.WRITE) != Perm.READ | Perm.WRITE:
            table = {
                topic: _limited(config, allowed)
                for topic, config in wrapper.topic_config_table.items()
            }
            wrapper = attrs.evolve(wrapper, topic_config_table=table)
        return bodies.encode(RegisterBrokerBody(wrapper))

    # -- signs of life ---------------------------------------------------------------------------------------

    @property
    def _not_active_ms(self) -> int | None:
        """After how long without a sign of life a name server takes us off; None for what it thinks itself."""
        acting = self._ha.enable_slave_acting_master
        return self._ha.broker_not_active_timeout_ms if acting else None

    def heartbeat(self) -> Command:
        """BROKER_HEARTBEAT: we live."""
        header = headers.BrokerHeartbeatRequest(
            cluster_name=self._settings.cluster,
            broker_addr=str(self.address),
            broker_name=self._settings.broker_name,
            broker_id=self._settings.broker_id,
        )
        return Command(code=RequestCode.BROKER_HEARTBEAT, ext=headers.encode(header))

    def members(self) -> Command:
        """GET_BROKER_MEMBER_GROUP: who else has this name?"""
        header = headers.GetBrokerMemberGroupRequest(
            self._settings.cluster, self._settings.broker_name
        )
        return Command(code=RequestCode.GET_BROKER_MEMBER_GROUP, ext=headers.encode(header))

    def farewell(self, address: Address) -> Command:
        """UNREGISTER_BROKER: forget that address of ours."""
        header = headers.UnRegisterBrokerRequest(
            self._settings.broker_name,
            str(address),
            self._settings.cluster,
            self._settings.broker_id,
        )
        return Command(code=RequestCode.UNREGISTER_BROKER, ext=headers.encode(header))


def _limited(config: TopicConfig, allowed: int) -> TopicConfig:
    """A topic under a broker permission that lacks R or W, as clients see it."""
    return attrs.evolve(config, perm=config.perm & allowed)
