"""trio-mq and Apache RocketMQ 5.4 side by side: one run, one machine, one client.

In: ``--rounds``, ``--seconds``, ``--only``. Out: a table of both and their ratio on the terminal, and all figures as
JSON below ``bench/results/``. ``just bench`` calls it.

Both are driven by the same Java program (``bench/java/Load.java``, Apache's own client): one process of it for all
rows and both sides, so that both meet an equally warm client. Apache's broker runs with its usual JVM settings. Before
anything is measured, each side takes the load of each row until its rate no longer rises: on two cores, where broker,
client and the compilers of both share the time, the first row needs half a minute. Then the two take turns, and the
ratio of a row is the median over the pairs of turns, so that a machine that slows down hits both. Keep the machine
quiet meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import attrs

from tests.interop import peers, servers
from tests.interop.drivers import Driver
from tests.interop.polling import sleep
from tests.ports import free_port

Side = Literal["trio", "apache"]
SIDES: tuple[Side, Side] = ("trio", "apache")
# Seconds of warm-up of a row before the first measurement, at least and at most; and before each measurement.
WARM_S = (10, 90)
AGAIN_S = (3, 3)
CONSUMED = 400_000
BROKER_JVM = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g")
CLIENT_JVM = ("-Xmx1g",)
HERE = Path(__file__).parent

# Row name: body size in bytes, load as Load.java takes it.
LOADS = {
    "sync x64, 128 B": (128, "sync:64"),
    "async window 1024, 128 B": (128, "async:1024"),
    "sync x1, 128 B": (128, "sync:1"),
    "sync x64, 1 KB": (1024, "sync:64"),
    "batch 4x32, 128 B": (128, "batch:4:32"),
}
CONSUME = "consume, 128 B"
PROCESS_ROWS = ("start to ready, s", "clean stop, s", "idle memory, MB")
# What trio-mq has to reach: a ratio for rates, an absolute limit for the others.
TARGETS = {
    "sync x64, 128 B": 1.0,
    "async window 1024, 128 B": 1.0,
    "sync x1, 128 B": 1.0,
    "sync x64, 1 KB": 1.0,
    "batch 4x32, 128 B": 0.4,
    CONSUME: 0.8,
    "start to ready, s": 0.6,
    "clean stop, s": 1.0,
    "idle memory, MB": 80.0,
}


@attrs.define
class Contestant:
    """Name server and broker of one side."""

    side: Side
    home: Path
    broker: servers.Server
    nameservers: list[servers.ApacheNameServer]
    start_s: float = 0.0

    @property
    def ns(self) -> str:
        """Address of the name server."""
        return self.broker.nameservers[0]

    @property
    def pids(self) -> list[int]:
        """All its processes."""
        processes = [self.broker.process, *(n.process for n in self.nameservers)]
        return [p.pid for p in processes if p is not None]

    def stop(self) -> float:
        """A clean stop of broker and name server, in seconds."""
        _, seconds = self.broker.stop()
        for nameserver in self.nameservers:
            assert nameserver.process is not None
            seconds += nameserver.process.stop()[1]
        return seconds

    def discard(self) -> None:
        """End it, and its store."""
        for server in (self.broker, *self.nameservers):
            server.discard()
        shutil.rmtree(self.home, ignore_errors=True)


def start(side: Side, folder: Path, settings: dict[str, str] | None = None) -> Contestant:
    """On an empty store; the time is from the first process to "clients can work"."""
    home = Path(tempfile.mkdtemp(prefix=f"{side}-", dir=folder))
    began = time.monotonic()
    settings = settings or {}
    if side == "trio":
        port = free_port()
        broker: servers.Server = servers.TrioServer(
            name="bench", home=home, nameservers=[f"127.0.0.1:{port}"], nameserver_port=port,
            settings=settings,
        )  # fmt: skip
        nameservers: list[servers.ApacheNameServer] = []
    else:
        nameserver = servers.ApacheNameServer(home=home / "namesrv", jvm=("-Xmx256m",))
        nameserver.start()
        nameservers = [nameserver]
        broker = servers.ApacheBroker(
            name="bench", home=home, nameservers=[nameserver.address], jvm=BROKER_JVM,
            settings=settings,
        )  # fmt: skip
    broker.start()
    return Contestant(side, home, broker, nameservers, time.monotonic() - began)


def anonymous_mb(pids: list[int]) -> float:
    """Anonymous resident memory: mapped files of the store are the page cache's, not the broker's."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1])
    return total / 1024


def cpu_s(pids: list[int]) -> float:
    """User and system time so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@attrs.define
class Client:
    """The program that makes the loads, and how long it measures."""

    driver: Driver
    seconds: int

    def produce(
        self, contestant: Contestant, row: str, warm_s: tuple[int, int], *, topic: str = ""
    ) -> dict[str, Any]:
        """One run of a row of LOADS."""
        size, mode = LOADS[row]
        least, most = warm_s
        return self._run(
            contestant, "produce", topic=topic or f"Load{size}", mode=mode, size=size, warm=least, warm_most=most,
            seconds=self.seconds,
        )  # fmt: skip

    def consume(self, contestant: Contestant, group: str) -> dict[str, Any]:
        """Read CONSUMED messages of the topic that :meth:`fill` made."""
        return self._run(contestant, "consume", topic="Filled", group=group, count=CONSUMED)

    def fill(self, contestant: Contestant) -> None:
        """At least CONSUMED messages to read."""
        total = 0
        while total < CONSUMED:
            total += self.produce(contestant, "batch 4x32, 128 B", (0, 0), topic="Filled")["total"]

    def _run(self, contestant: Contestant, op: str, **arguments: Any) -> dict[str, Any]:
        """Adds the CPU time that the broker spent for one message."""
        before = cpu_s(contestant.pids)
        figures: dict[str, Any] = self.driver.call(
            op, timeout_s=600, nameserver=contestant.ns, **arguments
        )
        if figures["failed"]:
            failed, why = figures["failed"], figures["why"]
            print(f"  {contestant.side}: {failed} calls failed, the first: {why}", file=sys.stderr)
        spent = cpu_s(contestant.pids) - before
        figures["broker_cpu_us"] = round(spent * 1e6 / max(1, figures["total"]), 1)
        return figures


def client(folder: Path, seconds: int) -> Client:
    """Start the one process of the client."""
    command = peers.java(folder / "client", peers.compiled(HERE / "java"), "Load", jvm=CLIENT_JVM)
    return Client(Driver(command, folder / "client.log"), seconds)


def processes(folder: Path, rounds: int) -> dict[str, list[dict[Side, float]]]:
    """Start, idle memory and stop, on fresh stores."""
    rows: dict[str, list[dict[Side, float]]] = {row: [] for row in PROCESS_ROWS}
    for _ in range(rounds):
        pair: dict[Side, tuple[float, float, float]] = {}
        for side in SIDES:
            contestant = start(side, folder)
            try:
                sleep(5)
                memory = anonymous_mb(contestant.pids)
                pair[side] = (contestant.start_s, contestant.stop(), memory)
            finally:
                contestant.discard()
        for i, row in enumerate(PROCESS_ROWS):
            rows[row].append({side: round(pair[side][i], 3) for side in SIDES})
    return rows


@contextmanager
def paused(pids: list[int]) -> Iterator[None]:
    """Keep processes from running for a while: an idle broker of Apache's takes a fifth of a core."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def rates(
    folder: Path, rows: list[str], rounds: int, seconds: int
) -> dict[str, list[dict[Side, dict[str, Any]]]]:
    """The rows of LOADS and CONSUME: both run, both and the client get warm, and they take turns."""
    results: dict[str, list[dict[Side, dict[str, Any]]]] = {row: [] for row in rows}
    contestants: dict[Side, Contestant] = {}
    try:
        for side in SIDES:
            contestants[side] = start(side, folder)
        loads = client(folder, seconds)
        with closing(loads.driver):
            # Apache's broker twice: at its first turn the client, too, is compiled, and takes time from it.
            warming: tuple[Side, ...] = ("apache", "trio", "apache")
            for side in warming:
                with alone(contestants, side) as contestant:
                    warm(loads, contestant, rows)
            for turn in range(rounds):
                for row in rows:
                    results[row].append(one_pair(loads, contestants, row, turn))
        for side, contestant in contestants.items():
            print(
                f"  {side}: {anonymous_mb(contestant.pids):.0f} MB anonymous memory after the loads"
            )
    finally:
        for contestant in contestants.values():
            contestant.discard()
    return results


@contextmanager
def alone(contestants: dict[Side, Contestant], side: Side) -> Iterator[Contestant]:
    """One side, while the other does not run."""
    other = SIDES[side == "trio"]
    with paused(contestants[other].pids):
        yield contestants[side]


def warm(loads: Client, contestant: Contestant, rows: list[str]) -> None:
    """Take the load of every row until its rate no longer rises."""
    for row in rows:
        if row == CONSUME:
            loads.fill(contestant)
            figures = loads.consume(contestant, f"Warm{time.monotonic_ns()}")
            print(f"  warming {contestant.side}, {row}: {figures['rate']:,.0f}/s")
            continue
        figures = loads.produce(contestant, row, WARM_S)
        took, rate, cpu = len(figures["warming"]), figures["rate"], figures["broker_cpu_us"]
        print(
            f"  warming {contestant.side}, {row}: {rate:,.0f}/s after {took} s, {cpu} us in the broker"
        )


def one_pair(
    loads: Client, contestants: dict[Side, Contestant], row: str, turn: int
) -> dict[Side, dict[str, Any]]:
    """One measurement of one row for both sides."""
    # The one who begins changes, so that neither always follows the other.
    order = SIDES if turn % 2 == 0 else SIDES[::-1]
    pair: dict[Side, dict[str, Any]] = {}
    for side in order:
        with alone(contestants, side) as contestant:
            if row == CONSUME:
                pair[side] = loads.consume(contestant, f"Group{turn}")
            else:
                pair[side] = loads.produce(contestant, row, AGAIN_S)
    print(f"  {row}: " + ", ".join(f"{s} {pair[s]['rate']:,.0f}/s" for s in SIDES))
    return pair


def summary(name: str, pairs: list[dict[Side, Any]]) -> dict[str, Any]:
    """Medians of both, the median of the pairs' ratios, and whether the target is met."""
    plain = [
        {side: p[side]["rate"] if isinstance(p[side], dict) else p[side] for side in SIDES}
        for p in pairs
    ]
    ratio = statistics.median(p["trio"] / p["apache"] for p in plain)
    row: dict[str, Any] = {side: statistics.median(p[side] for p in plain) for side in SIDES}
    absolute = name in PROCESS_ROWS
    row |= {
        "ratio": round(ratio, 3),
        "target": TARGETS[name],
        "met": row["trio"] <= TARGETS[name] if absolute else ratio >= TARGETS[name],
    }
    return row


def table(rows: dict[str, dict[str, Any]]) -> str:
    """For people."""
    lines = [f"{'':<28}{'trio-mq':>12}{'Apache 5.4':>12}{'ratio':>8}  target"]
    for name, row in rows.items():
        form = ",.2f" if name in PROCESS_ROWS else ",.0f"
        sign = "<=" if name in PROCESS_ROWS else ">="
        unit = "" if name in PROCESS_ROWS else " of Apache"
        lines.append(
            f"{name:<28}{row['trio']:>12{form}}{row['apache']:>12{form}}{row['ratio']:>8.2f}"
            f"  {sign} {row['target']}{unit}: {'met' if row['met'] else 'MISSED'}"
        )
    return "\n".join(lines)


def options(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    names = [*LOADS, CONSUME, "process"]
    parser = argparse.ArgumentParser(
        prog="just bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="pairs of measurements of each row")
    parser.add_argument(
        "--seconds", type=int, default=8, help="of each measurement, after 3 s of the same load"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="ROW",
        help="rows whose name contains this; can be given several times. Rows: " + "; ".join(names),
    )  # fmt: skip
    parser.add_argument("--json", type=Path, default=None, help="where to write the figures")
    parser.add_argument("--folder", type=Path, default=None, help="where the stores live meanwhile")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Measure, print, write."""
    given = options(argv)
    wanted = [
        row
        for row in [*LOADS, CONSUME, "process"]
        if not given.only or any(o in row for o in given.only)
    ]
    if not wanted:
        sys.exit(f"no row is called like {given.only}; see --help")
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    with tempfile.TemporaryDirectory(prefix="trio-mq-bench-", dir=given.folder) as name:
        folder = Path(name)
        pairs: dict[str, list[dict[Side, Any]]] = {}
        if "process" in wanted:
            print("start, idle memory, stop")
            pairs |= processes(folder, given.rounds)
        loads = [row for row in wanted if row != "process"]
        if loads:
            pairs |= rates(folder, loads, given.rounds, given.seconds)
    rows = {name: summary(name, measured) for name, measured in pairs.items()}
    print("\n" + table(rows))
    target = given.json or HERE / "results" / f"{stamp}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "system": platform.platform(),
    }
    report = {
        "when": stamp, "machine": machine, "rounds": given.rounds, "seconds": given.seconds,
        "rows": rows, "pairs": pairs,
    }  # fmt: skip
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nfigures: {target}")


if __name__ == "__main__":
    main()
