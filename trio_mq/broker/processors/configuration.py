"""The settings of a running broker: looked at, and changed where that has an effect at once.

In: GET_BROKER_CONFIG (26), UPDATE_BROKER_CONFIG (25) with ``key=value`` lines. Out: replies. A change is answered once
it is saved, and once the name servers know of one that they hand out. Called by the remoting face. Rules: Apache
AdminBrokerProcessor; what is different on purpose: :mod:`trio_mq.config.live`, :mod:`trio_mq.broker.updates`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from trio_mq.broker.saver import Saver, respond_saved
from trio_mq.broker.topics import TopicTable
from trio_mq.broker.updates import SettingUpdates
from trio_mq.clock import Clock
from trio_mq.config import Settings
from trio_mq.config.live import Forbidden, read_changes, shown
from trio_mq.config.settings import catalogue
from trio_mq.errors import ConfigError, RequestRefused
from trio_mq.net.requests import DEFERRED, Call, Deferred, Reply, RequestTable
from trio_mq.protocol import bodies
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.admin import GetBrokerConfigReply

log = logging.getLogger("trio_mq.broker.admin")

_KEPT_BY_TOPIC = frozenset(
    {"autoCreateTopicEnable", "brokerPermission", "startAcceptSendRequestTimeStamp"}
)
"""Settings that are looked at once for a topic, and again when the topics have a new version."""


class Configuration:
    """Answers about settings. `permission_changed` is called when name servers have to hear of all topics anew."""

    def __init__(
        self,
        settings: Settings,
        topics: TopicTable,
        updates: SettingUpdates,
        clock: Clock,
        saver: Saver | None,
        permission_changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._updates = updates
        self._clock = clock
        self._saver = saver
        self._permission_changed = permission_changed

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.GET_BROKER_CONFIG, None, self.config)
        table.add(RequestCode.UPDATE_BROKER_CONFIG, None, self.update)

    def config(self, _: Call, __: None) -> Reply:
        """GET_BROKER_CONFIG (26): all settings, one ``key=value`` a line."""
        lines = sorted(f"{info.meta.key}={shown(self._settings, info)}" for info in catalogue())
        version = bodies.encode(self._updates.version).decode()
        return Reply(header=GetBrokerConfigReply(version), body="\n".join(lines).encode())

    def update(self, call: Call, _: None) -> Reply | Deferred:
        """UPDATE_BROKER_CONFIG (25): all of the changes, or none."""
        black_list = self._settings.broker.config_black_list
        try:
            changes = read_changes(self._settings, call.command.body, black_list)
        except Forbidden as error:
            raise RequestRefused(ResponseCode.NO_PERMISSION, str(error)) from error
        except ConfigError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if not changes:
            return Reply()
        self._updates.make(self._settings, changes, self._clock.now_ms())
        told = ", ".join(f"{change.key} = {change.text}" for change in changes)
        log.warning("settings changed by %s: %s", call.peer.address, told)
        if _KEPT_BY_TOPIC.intersection(change.key for change in changes):
            self._topics.settings_changed()
            self._permission_changed()
        return self._when_saved(call)

    def _when_saved(self, call: Call) -> Reply | Deferred:
        if self._saver is None:
            return Reply()
        self._saver.soon(partial(respond_saved, call, Reply()))
        return DEFERRED
