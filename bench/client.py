"""``python -m bench.client``: the Python client and Apache's Java client side by side, on one Apache broker.

In: ``--rounds``, ``--seconds``, ``--only``. Out: a table of both clients and their ratios on the terminal, and all
figures as JSON below ``bench/results/``. ``just bench-client`` calls it.

The Java client is ``java/Load.java``, the Python one ``client_load.py``, once under Trio and once under asyncio, each a
process of its own that stays for the whole run. The Java client and the broker are warmed up until their rate no longer
rises; then the three take turns, and a ratio is the median over the turns. Messages have 128 bytes, a tag and a key.
The consumer's ratio counts from the first message to the last. Keep the machine quiet meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs

from tests.interop.drivers import Driver

from .compare import Contestant, client, start

BACKENDS = ("trio", "asyncio")
CLIENTS = ("java", *BACKENDS)
SIZE = 128
WARM_S = (8, 40)
AGAIN_S = 2
# Row: the load as Load.java takes it, as client_load.py takes it, the figure that counts.
PRODUCE = {
    "pipelined, window 1024": ("async:1024", "pipeline:1024", "rate"),
    "one at a time, p50 ms": ("sync:1", "single", "p50_ms"),
}
CONSUME = "consume"
ROWS = (*PRODUCE, CONSUME)
#: For rates at least so much of Java's, for latencies at most.
TARGETS = {"pipelined, window 1024": 0.5, "one at a time, p50 ms": 1.5, CONSUME: 0.3}


@attrs.define
class Clients:
    """The processes of the three."""

    contestant: Contestant
    drivers: dict[str, Driver]
    seconds: int
    consumed: int
    groups: int = 0

    def produce(self, name: str, row: str, warm_s: tuple[int, int]) -> dict[str, Any]:
        java_mode, python_mode, _ = PRODUCE[row]
        return self._call(
            name, "produce", topic="ClientLoad", size=SIZE, seconds=self.seconds, warm=warm_s[0],
            warm_most=warm_s[1], mode=java_mode if name == "java" else python_mode,
        )  # fmt: skip

    def consume(self, name: str) -> dict[str, Any]:
        self.groups += 1
        group = f"ClientGroup{self.groups}"
        return self._call(name, "consume", topic="Filled", group=group, count=self.consumed)

    def fill(self) -> None:
        total = 0
        while total < self.consumed:
            total += self._call(
                "java", "produce", topic="Filled", size=SIZE, seconds=5, warm=0, warm_most=0, mode="batch:4:32",
            )["total"]  # fmt: skip

    def _call(self, name: str, op: str, **arguments: Any) -> dict[str, Any]:
        figures: dict[str, Any] = self.drivers[name].call(
            op, timeout_s=300, nameserver=self.contestant.ns, **arguments
        )
        if figures["failed"]:
            print(f"  {name}: {figures['failed']} failed: {figures['why']}", file=sys.stderr)
        return figures

    def close(self) -> None:
        for driver in self.drivers.values():
            driver.close()


def clients(folder: Path, contestant: Contestant, seconds: int, consumed: int) -> Clients:
    """Start the three processes."""
    drivers = {"java": client(folder, seconds).driver}
    for backend in BACKENDS:
        drivers[backend] = Driver(
            [sys.executable, "-m", "bench.client_load", backend],
            folder / f"{backend}.log",
            {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        )
    return Clients(contestant, drivers, seconds, consumed)


def measure(three: Clients, row: str, turn: int) -> dict[str, dict[str, Any]]:
    """One turn of a row; who begins changes."""
    found = {}
    shift = turn % len(CLIENTS)
    for name in CLIENTS[shift:] + CLIENTS[:shift]:
        if row == CONSUME:
            found[name] = three.consume(name)
        else:
            found[name] = three.produce(name, row, (AGAIN_S, AGAIN_S))
    figure = figure_of(row)
    print(f"  {row}: " + ", ".join(f"{name} {found[name][figure]:,}" for name in CLIENTS))
    return found


def figure_of(row: str) -> str:
    return "rate" if row == CONSUME else PRODUCE[row][2]


def run(
    folder: Path, rows: list[str], rounds: int, seconds: int, consumed: int
) -> dict[str, list[dict[str, Any]]]:
    """Warm up and take turns."""
    contestant = start("apache", folder)
    try:
        three = clients(folder, contestant, seconds, consumed)
        try:
            for row in rows:
                if row == CONSUME:
                    three.fill()
                    warmed = three.consume("java")
                else:
                    warmed = three.produce("java", row, WARM_S)
                print(f"  warm java, {row}: {warmed[figure_of(row)]:,}")
            return {row: [measure(three, row, turn) for turn in range(rounds)] for row in rows}
        finally:
            three.close()
    finally:
        contestant.discard()


def summary(row: str, turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, ratios to Java's, and whether the target is met."""
    figure = figure_of(row)
    found: dict[str, Any] = {
        name: statistics.median(turn[name][figure] for turn in turns) for name in CLIENTS
    }
    for backend in BACKENDS:
        ratio = statistics.median(turn[backend][figure] / turn["java"][figure] for turn in turns)
        found[f"{backend}_ratio"] = round(ratio, 3)
        cpu = statistics.median(turn[backend]["client_cpu_us"] for turn in turns)
        found[f"{backend}_cpu_us"] = cpu
        target = TARGETS[row]
        found[f"{backend}_met"] = ratio >= target if figure == "rate" else ratio <= target
    return found


def table(rows: dict[str, dict[str, Any]]) -> str:
    """For people."""
    lines = [
        f"{'':<26}{'Java':>10}"
        + "".join(f"{name:>12}{'ratio':>8}{'us CPU':>8}" for name in BACKENDS)
    ]
    for name, row in rows.items():
        form = ",.0f" if figure_of(name) == "rate" else ",.3f"
        line = f"{name:<26}{row['java']:>10{form}}"
        for backend in BACKENDS:
            line += f"{row[backend]:>12{form}}{row[f'{backend}_ratio']:>8.2f}{row[f'{backend}_cpu_us']:>8.1f}"
        sign = ">=" if figure_of(name) == "rate" else "<="
        met = all(row[f"{backend}_met"] for backend in BACKENDS)
        lines.append(f"{line}  {sign} {TARGETS[name]} of Java: {'met' if met else 'MISSED'}")
    return "\n".join(lines)


def options(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="just bench-client", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each row")
    parser.add_argument("--seconds", type=int, default=6, help="of each measurement of sending")
    parser.add_argument(
        "--consumed", type=int, default=200_000, help="messages of each consumption"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="ROW",
        help="rows whose name contains this; can be given several times. Rows: " + "; ".join(ROWS),
    )  # fmt: skip
    parser.add_argument("--json", type=Path, default=None, help="where to write the figures")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Measure, print, write."""
    given = options(argv)
    rows = [row for row in ROWS if not given.only or any(part in row for part in given.only)]
    if not rows:
        sys.exit(f"no row is called like {given.only}; see --help")
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    with tempfile.TemporaryDirectory(prefix="trio-mq-bench-") as name:
        turns = run(Path(name), rows, given.rounds, given.seconds, given.consumed)
    found = {row: summary(row, turns[row]) for row in rows}
    print("\n" + table(found))
    target = given.json or Path(__file__).parent / "results" / f"client-{stamp}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "python": platform.python_version(), "cpus": os.cpu_count(), "system": platform.platform(),
    }  # fmt: skip
    report = {"when": stamp, "machine": machine, "rows": found, "turns": turns}
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nfigures: {target}")


if __name__ == "__main__":
    main()
