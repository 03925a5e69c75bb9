"""Who sends to a master while packets are dropped, and what came of it."""

from __future__ import annotations

import itertools
import threading  # noqa: TID251 - a load from outside, while this thread makes the partitions
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import attrs

from tests.system.client import Client, Gone
from trio_mq.protocol.codes import ResponseCode


@attrs.define(eq=False)
class Sender:
    """Sends to one topic; `connect` gives a connection to the master, in any thread."""

    topic: str
    connect: Callable[[], AbstractContextManager[Client]]
    #: Bodies that were acknowledged with SUCCESS, and those that were sent at all.
    acked: list[bytes] = attrs.field(factory=list)
    sent: list[bytes] = attrs.field(factory=list)
    codes: list[int] = attrs.field(factory=list)

    def send(self, client: Client, body: bytes) -> int:
        """Send one message; the code of the answer."""
        self.sent.append(body)
        answer = client.send(self.topic, body)
        if answer.code == ResponseCode.SUCCESS:
            self.acked.append(body)
        self.codes.append(answer.code)
        return answer.code

    @contextmanager
    def load(self, gap_s: float = 0.0) -> Iterator[None]:
        """Send meanwhile, one after another with a pause between two."""
        over = threading.Event()

        def run() -> None:
            with self.connect() as client:
                for number in itertools.count():
                    if over.wait(gap_s):
                        return
                    with suppress(Gone):
                        self.send(client, b"load %d " % number + b"x" * (number * 37 % 3000))

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(30)
        assert not thread.is_alive()

    def check(self, found: list[bytes]) -> None:
        """Bodies that are in the log: all that was acknowledged, nothing twice, nothing else."""
        assert len(found) == len(set(found)), "twice"
        assert set(self.acked) <= set(found), "acknowledged and lost"
        assert set(found) <= set(self.sent)
