"""Messages that the broker itself puts into the store: due and returned ones, transactions, check points of pops.

In: a :class:`Letter`. Out: where it lies (:class:`Put`), once it is written; and a way to answer when it is durable.
Called by the services and processors of the broker, never between a send and its commit: one commit covers one
caller's records only, so that a write that fails is told to whoever asked for it. Apache: MessageStore.putMessage,
EscapeBridge.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import attrs
import trio

from trio_mq.broker.redirects import Redirects
from trio_mq.broker.safety import PutStatus, Safety
from trio_mq.clock import Clock
from trio_mq.errors import RequestRefused, StoreFull
from trio_mq.net.requests import DEFERRED, Call, Deferred, Reply
from trio_mq.protocol import properties as props
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.record import StoredMessage
from trio_mq.store.queues import BaseQueue
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.put")

_BORN_V6 = int(MessageFlag.BORN_HOST_V6)
_HOSTS_V6 = int(MessageFlag.BORN_HOST_V6 | MessageFlag.STORE_HOST_V6)


@attrs.frozen
class Letter:
    """A message to be stored. `properties` is raw text, `born_host` packed (8 or 20 bytes)."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    born_timestamp_ms: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def again(
        cls,
        record: StoredMessage,
        *,
        topic: str,
        queue_id: int,
        properties: Mapping[str, str] | bytes | None = None,
    ) -> Letter:
        """A stored message once more, in another queue: same body, flags, time and place of birth."""
        if properties is None:
            properties = record.properties
        elif not isinstance(properties, bytes):
            properties = props.encode(properties)
        return cls(
            topic,
            queue_id,
            record.body,
            properties,
            record.born_timestamp_ms,
            record.born_host.packed,
            record.flag,
            record.sys_flag & ~_HOSTS_V6,
            record.reconsume_times,
        )


class Put(NamedTuple):
    """Where a message lies; `end` is the log offset behind its record."""

    log_offset: int
    queue_id: int
    queue_offset: int
    end: int


class Putter:
    """Puts messages of the broker's own."""

    def __init__(
        self, store: Store, redirects: Redirects, clock: Clock, safety: Safety | None = None
    ) -> None:
        self._store = store
        self._safety = safety or Safety(store)
        self._redirects = redirects
        self._clock = clock

    def put(self, letter: Letter) -> Put:
        """Store one message as it is given.

        Raises StoreFull when it is not stored, LocalProtocolError for a field that is too long.
        """
        return self.put_all([letter])[0]

    def put_all(self, letters: Sequence[Letter]) -> list[Put]:
        """Store some messages with one write: all of them, or StoreFull.

        LocalProtocolError for a field that is too long: those before it are stored. Whoever puts several has looked.
        """
        token = object()
        try:
            puts = [self._stage(letter, token, None) for letter in letters]
        finally:
            self._commit(token)
        return puts

    def deliver(self, letter: Letter) -> Put:
        """Store one message where its properties say: it may have to wait (again) before it is seen.

        Raises RequestRefused for a delay that cannot be kept, and as :meth:`put`.
        """
        to = self._redirects.apply(
            letter.topic,
            letter.queue_id,
            letter.properties,
            letter.sys_flag,
            self._clock.now_ms(),
        )
        letter = attrs.evolve(
            letter,
            topic=to.topic,
            queue_id=to.queue_id,
            properties=to.properties,
            sys_flag=to.sys_flag,
        )
        token = object()
        try:
            put = self._stage(letter, token, to.delay_ms)
        finally:
            self._commit(token)
        return put

    def _stage(self, letter: Letter, token: object, delay_ms: int | None) -> Put:
        store = self._store
        queue = store.queues.obtain(letter.topic, letter.queue_id)
        sys_flag = letter.sys_flag & ~_HOSTS_V6
        if len(letter.born_host) > 8:
            sys_flag |= _BORN_V6
        props_text = letter.properties
        further: tuple[BaseQueue, ...] = ()
        if store.multi is not None:
            try:
                props_text, further = store.multi.assign(letter.topic, props_text)
            except (
                RequestRefused
            ) as refusal:  # nobody can be told, and the message is more than that
                log.warning("a message of %s is in no other queue: %s", letter.topic, refusal)
        log_offset = store.append(
            queue,
            letter.body,
            props_text,
            token=token,
            flag=letter.flag,
            sys_flag=sys_flag,
            born_timestamp_ms=letter.born_timestamp_ms,
            born_host=letter.born_host,
            reconsume_times=letter.reconsume_times,
            prepared_transaction_offset=letter.prepared_transaction_offset,
            delay_ms=delay_ms,
            further=further,
            now_ms=self._clock.now_ms(),
        )
        # Writing what was staged before may have moved it to the next segment, but not this record.
        return Put(log_offset, letter.queue_id, queue.next_offset - 1, store.log.end)

    def _commit(self, token: object) -> None:
        store = self._store
        store.commit()
        if token in store.failed:
            store.failed = [failed for failed in store.failed if failed is not token]
            raise StoreFull(store.refusal or "the message could not be written to the commit log")

    # -- when it is safe -------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether anything has to be waited for after a put."""
        return self._safety.waits

    def check_replicas(self) -> None:
        """Raise RequestRefused when too few replicas are there to store what somebody is to be answered for."""
        self._safety.check()

    def when_durable(self, end: int, then: Callable[[bool], None]) -> None:
        """Call `then(True)` once everything before `end` is safe, or no replica is waited for any longer.

        That is for what the broker notes about messages of its own: a slave that is away does not keep it from going
        on. `then(False)` is called when the own disk takes too long. Without sync flush or replication at once.
        """
        if not self._safety.waits:
            then(True)
            return
        self._safety.when_safe(end, lambda _: then(self._safety.is_on_disk(end)))

    async def durable(self, end: int) -> bool:
        """Wait as :meth:`when_durable`; whether it came to be in time."""
        done = trio.Event()
        outcome = True

        def then(durable: bool) -> None:
            nonlocal outcome
            outcome = durable
            done.set()

        self.when_durable(end, then)
        await done.wait()
        return outcome

    def answer(self, call: Call, end: int, reply: Reply) -> Reply | Deferred:
        """`reply` now, or later when everything before `end` is safe.

        For what is no send, replicas that are late do not change the answer: what was asked for is done, and would only
        be done again (Apache: EndTransactionProcessor, AckMessageProcessor and others take FLUSH_SLAVE_TIMEOUT for a
        success).
        """
        safety = self._safety
        if not safety.waits:
            return reply

        def then(status: PutStatus) -> None:
            answer = reply
            if status is PutStatus.FLUSH_DISK_TIMEOUT:
                answer = attrs.evolve(reply, code=status.code, remark=safety.remark(status, end))
            call.respond(answer)

        safety.when_safe(end, then)
        return DEFERRED
