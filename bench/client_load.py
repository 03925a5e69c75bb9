"""The loads of ``bench.client``, made by the Python client: the twin of ``java/Load.java``.

In: one command a line on standard input, as JSON. Out: one line of figures for each, with the names of Load.java.
Called by :mod:`.client`, as a process of its own for each backend (the first argument: ``trio`` or ``asyncio``).

    {"id":1, "op":"produce", "nameserver":.., "topic":.., "mode":"pipeline:WINDOW"|"single", "size":BYTES,
     "warm":SECONDS, "seconds":SECONDS}
    {"id":2, "op":"consume", "nameserver":.., "topic":.., "group":.., "count":MESSAGES}
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import anyio

import trio_mq

BATCH = 64
CONSUME_LIMIT_S = 120


def figures(rate: float, total: int, cpu_s: float, times_s: list[float]) -> dict[str, Any]:
    times_s.sort()

    def at(share: float) -> float:
        return round(times_s[int((len(times_s) - 1) * share)] * 1e3, 4) if times_s else 0

    return {
        "rate": round(rate, 1), "failed": 0, "why": "", "total": total, "p50_ms": at(0.5), "p99_ms": at(0.99),
        "client_cpu_us": round(cpu_s * 1e6 / max(1, total), 1),
    }  # fmt: skip


async def produce(command: dict[str, Any]) -> dict[str, Any]:
    body = os.urandom(command["size"])
    kind, _, window = command["mode"].partition(":")
    async with trio_mq.Producer(
        command["nameserver"], "LoadProducer", send_timeout_s=10, compress_over_bytes=1 << 30
    ) as producer:
        if kind == "single":
            return await one_at_a_time(producer, command, body)
        return await pipelined(producer, command, body, int(window))


def message(topic: str, number: int, body: bytes) -> trio_mq.Message:
    return trio_mq.Message(topic, body, tags="TagA", keys=[f"0-{number}"])


async def one_at_a_time(
    producer: trio_mq.Producer, command: dict[str, Any], body: bytes
) -> dict[str, Any]:
    topic = command["topic"]
    number = 0
    for phase in ("warm", "seconds"):
        times_s: list[float] = []
        cpu_s, began = time.process_time(), time.perf_counter()
        end = now = began
        end += command[phase]
        while now < end:
            start = time.perf_counter()
            await producer.send(message(topic, number, body))
            now = time.perf_counter()
            times_s.append(now - start)
            number += 1
    total = len(times_s)
    return figures(total / (now - began), total, time.process_time() - cpu_s, times_s)


async def pipelined(
    producer: trio_mq.Producer, command: dict[str, Any], body: bytes, window: int
) -> dict[str, Any]:
    """Every receipt is looked at, as Load.java's callbacks do."""
    topic = command["topic"]
    async with producer.pipeline(window) as pipeline:
        for phase in ("warm", "seconds"):
            total, bad = 0, 0
            waiting: list[trio_mq.PendingSend] = []
            cpu_s, began = time.process_time(), time.perf_counter()
            end = began + command[phase]
            while time.perf_counter() < end:
                for _ in range(BATCH):
                    waiting.append(await pipeline.send(message(topic, total, body)))
                    total += 1
                if len(waiting) >= 2 * window:
                    for pending in waiting[:-window]:
                        receipt = await pending
                        bad += receipt.status is not trio_mq.SendStatus.OK
                    del waiting[:-window]
            for pending in waiting:
                bad += (await pending).status is not trio_mq.SendStatus.OK
            took = time.perf_counter() - began
    found = figures(total / took, total, time.process_time() - cpu_s, [])
    return {**found, "failed": bad}


async def consume(command: dict[str, Any]) -> dict[str, Any]:
    wanted = command["count"]
    done = 0
    first = last = 0.0
    enough = anyio.Event()

    def handle(received: trio_mq.ReceivedMessage) -> None:
        nonlocal done, first, last
        if not done:
            first = time.perf_counter()
        done += 1
        if done == wanted:
            last = time.perf_counter()
            enough.set()

    async def handler(received: trio_mq.ReceivedMessage) -> None:
        handle(received)

    cpu_s = time.process_time()
    async with trio_mq.Consumer(
        command["nameserver"],
        command["group"],
        subscribe={command["topic"]: "*"},
        from_where="first",
    ) as consumer:
        with anyio.move_on_after(CONSUME_LIMIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, handler)
                await enough.wait()
                tasks.cancel_scope.cancel()
    took = (last or time.perf_counter()) - first
    found = figures(done / took, done, time.process_time() - cpu_s, [])
    return {**found, "failed": int(done < wanted), "why": f"{done} of {wanted} came"}


def main() -> None:
    backend = sys.argv[1]
    for line in sys.stdin:
        command = json.loads(line)
        run = produce if command["op"] == "produce" else consume
        answer: dict[str, Any] = {"id": command["id"]}
        try:
            answer["ok"] = anyio.run(run, command, backend=backend)
        except Exception as error:
            answer["error"] = {"type": type(error).__name__, "code": 0, "message": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
