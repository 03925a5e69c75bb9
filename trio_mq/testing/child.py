"""A broker in a process of its own that does what a test asks for.

In: the folder of the store, settings, and requests on standard input, one JSON object a line. Out: a line that says
that it is ready, then one for each request; the log goes to standard error. Started by :mod:`.process` through
:mod:`.serve`; told to add or take off faults, to make topics and to
forget them.

It ends at once when its standard input does or its parent has gone, and leaves the store as it is: nothing of a test
has to last. A start that fails ends with the exit code of its error.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import trio

from trio_mq.clock import SystemClock
from trio_mq.config import Settings
from trio_mq.errors import TrioMQError
from trio_mq.net.network import TCP
from trio_mq.system import Ready, run_system
from trio_mq.tasks import leaves
from trio_mq.testing.faults import Rule, RuleBook
from trio_mq.testing.faulty import FaultyNetwork
from trio_mq.testing.scratch import ScratchDisk
from trio_mq.testing.settings import settings_of
from trio_mq.testing.topics import create_topic, forget

log = logging.getLogger("trio_mq.testing")

#: How often it is looked whether the parent is there: its forks may hold our standard input open.
PARENT_SCAN_S = 1.0


class Control:
    """Does what the parent asks for."""

    def __init__(self, book: RuleBook) -> None:
        self._book = book
        self._broker = ""

    def ready(self, found: Ready) -> None:
        """Say that the broker can be used."""
        gc.enable()
        gc.collect()
        gc.freeze()
        self._broker = found.broker
        _tell({"nameserver": found.nameserver, "broker": found.broker})

    async def run(self) -> None:
        """Answer the parent until it hangs up; then end the process."""
        pending = b""
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as requests:
            async for data in requests:
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    _tell(await self._answer(json.loads(line)))
        os._exit(0)

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        what = asked.pop("do")
        try:
            return {"value": await self._do(what, asked)}
        except TrioMQError as error:
            return {"error": str(error)}

    async def _do(self, what: str, asked: dict[str, Any]) -> int | None:
        if what == "add":
            return self._book.add(Rule.of_fields(asked["rule"]))
        if what == "hits":
            return self._book.hits(asked["number"])
        if what == "remove":
            self._book.remove(asked["number"])
        elif what == "clear":
            self._book.clear()
        elif what == "forget":
            await forget(self._broker, asked["topics"], asked["groups"])
        else:
            assert what == "topic", what
            await create_topic(self._broker, asked["name"], asked["queues"])
        return None


def _tell(answer: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


async def _watch(parent: int) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 - the system has no event for it
        await trio.sleep(PARENT_SCAN_S)
    os._exit(0)


async def serve(settings: Settings) -> None:
    """A broker and a name server, until the parent has gone."""
    book = RuleBook()
    control = Control(book)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.run)
        nursery.start_soon(_watch, os.getppid())
        await run_system(
            settings,
            ScratchDisk(),
            SystemClock(),
            trio.Event(),
            began_s=time.perf_counter(),
            ready=control.ready,
            network=FaultyNetwork(TCP, book),
        )


def main(arguments: Sequence[str]) -> int:
    """Serve; the exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    store, *given = arguments
    wanted = dict(one.split("=", 1) for one in given)
    try:
        trio.run(serve, settings_of(store, wanted))
    except (TrioMQError, BaseExceptionGroup) as error:
        log.error("%s", error, exc_info=True)
        codes = (e.exit_code for e in leaves(error) if isinstance(e, TrioMQError))
        return next(codes, 1)
    return 0
