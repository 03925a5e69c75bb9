"""The name server: a handler for listeners, and two tasks behind it.

In: frames from clients and brokers, ends of connections, time. Out: replies; silent brokers are
taken off and their connections closed; changed key-value settings go to their file. Made by the
process (``system``), which also runs the listener. Source of the rules: Apache NamesrvController,
BrokerHousekeepingService.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from trio_mq.clock import Clock, SystemClock
from trio_mq.config.nameserver import NameServerSettings
from trio_mq.nameserver.kv import KVConfig, KVFile
from trio_mq.nameserver.outcomes import Removed
from trio_mq.nameserver.processors import Processors
from trio_mq.nameserver.routes import RouteTable
from trio_mq.net.requests import (
    DEFERRED,
    Call,
    Deferred,
    Peer,
    Reply,
    RequestTable,
    requests_in,
)
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.frames import RawFrame
from trio_mq.store.disk import Disk

log = logging.getLogger("trio_mq.nameserver")


class NameServer:
    """A name server; it is itself the handler that a listener wants.

    Without a `disk` or without a path in the settings, key-value settings live in memory only.
    `now_s` is the monotonic clock; wall time goes into nothing that decides.
    """

    def __init__(
        self,
        settings: NameServerSettings | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        now_s: Callable[[], float] = trio.current_time,
    ) -> None:
        settings = settings or NameServerSettings()
        self.routes = RouteTable(settings)
        self.kv = KVConfig()
        self.requests = RequestTable("name server")
        self._disk = disk
        self._kv_path = settings.kv_config_path if disk is not None else None
        self._clock = clock or SystemClock()
        self._now_s = now_s
        self._processors = Processors(self.routes, self.kv, now_s=now_s, save=self._save_later)
        self._processors.fill(self.requests)
        self._unsaved: list[Call] = []
        self._to_save = trio.Event()

    # --- the handler

    def opened(self, peer: Peer) -> None:
        """A connection was accepted: nothing to do until it registers a broker."""

    def received(self, peer: Peer, frames: list[RawFrame]) -> None:
        """Answer the requests in `frames`; a header that does not parse ends the connection."""
        now_ms = self._clock.now_ms()
        for command in requests_in(peer, frames):
            self.requests.handle(peer, command, now_ms)

    def disconnected(self, peer: Peer) -> None:
        """Brokers that registered over this connection are gone, unless they came back already."""
        for removed in self.routes.disconnected(peer):
            self._gone(removed, "its connection was closed")

    # --- tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the key-value settings, then scan and save until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._disk is not None and self._kv_path is not None:
                file = KVFile(self._disk, self._kv_path)
                self.kv.tables = (await self._disk.run(file.load)).tables
                nursery.start_soon(self._save_when_changed, self._disk, file)
            self._processors.started_s = self._now_s()
            nursery.start_soon(self._scan)
            task_status.started()

    async def _scan(self) -> None:
        """Take off silent brokers."""
        while True:
            await trio.sleep(self.routes.settings.scan_not_active_broker_interval_ms / 1000)
            self.expire()

    def expire(self) -> None:
        """Take off the brokers that have been silent for too long, and close their connections."""
        for removed in self.routes.expire(self._now_s()):
            self._gone(removed, "it was silent for too long")
            peer: Peer | None = removed.token  # type: ignore[assignment]
            if peer is not None:
                peer.close()

    def _gone(self, removed: Removed, why: str) -> None:
        log.warning("broker %s at %s is taken off: %s", removed.broker_name, removed.address, why)
        self._processors.notify(removed.change)

    def _save_later(self, call: Call) -> Reply | Deferred:
        if self._kv_path is None:
            return Reply()
        self._unsaved.append(call)
        self._to_save.set()
        return DEFERRED

    async def _save_when_changed(self, disk: Disk, file: KVFile) -> None:
        """Write the file; the calls that changed something are answered when it is durable."""
        while True:
            await self._to_save.wait()
            self._to_save = trio.Event()
            calls, self._unsaved = self._unsaved, []
            content = self.kv.encode()
            reply = Reply()
            try:
                await disk.run(partial(file.save, content))
            except OSError as error:
                log.error("cannot write %s: %s", file.path, error)
                reply = Reply(
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"changed until this name server ends, for {file.path} cannot be "
                    f"written: {error}; make room or check its permissions, and repeat",
                )
            for call in calls:
                call.respond(reply)
