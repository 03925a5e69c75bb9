"""``python -m bench.ha``: how fast a slave catches up, comes back and stops, a trio-mq pair and a pair of Apache's.

In: ``--megabytes``, ``--rounds``, ``--only``. Out: a table with ratios and targets, all figures as JSON below
``bench/results/``. ``just bench-ha`` calls it. A run after which the slave's log or queues are not those of its master
counts as missed, however fast it was. ``docs/howto/measure.md`` says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs

from bench import ha_runs as runs
from bench.ha_runs import Catch
from bench.ha_store import Behind, obtain
from tests.interop.servers import Kind

HERE = Path(__file__).parent
SIDES: tuple[Kind, Kind] = ("trio", "apache")
CATCH, FULL, BACK, STOP = "catch up", "whole log", "master back", "stop"
ROWS = (CATCH, FULL, BACK, STOP)
#: The ratios, and the limits in seconds, that trio-mq has to reach.
RATIO, BACK_S, STOP_S = 1.0, 6.0, 0.5
#: How long the master is away, so that its return meets every phase of the slave's back-off of 5 s.
PAUSES_S = (0.3, 1.7, 3.1, 4.4)


@attrs.define
class Figures:
    """All that was measured."""

    catches: dict[str, list[dict[str, Catch]]] = attrs.field(factory=dict)
    seconds: dict[str, dict[str, list[float]]] = attrs.field(factory=dict)


def measure(behind: Behind | None, folder: Path, rows: list[str], rounds: int) -> Figures:
    """All rows; sides take turns, and the one that begins changes."""
    figures = Figures()
    for turn in range(rounds):
        order = SIDES if turn % 2 == 0 else SIDES[::-1]
        if CATCH in rows and behind is not None:
            pair = {side: caught(side, behind, folder) for side in order}
            figures.catches.setdefault(CATCH, []).append(pair)
        if FULL in rows and behind is not None:
            # Apache has no such setting, so it is held against Apache's slave that was stopped.
            one = {"trio": caught("trio", behind, folder, empty=True)}
            figures.catches.setdefault(FULL, []).append(one)
    for side in SIDES:
        if BACK in rows:
            figures.seconds.setdefault(BACK, {})[side] = returns(side, folder)
        if STOP in rows:
            took = [
                runs.stop_without_master(side, folder / "pair", silent=silent)
                for silent in (False, True)
            ]
            figures.seconds.setdefault(STOP, {})[side] = took
            print(f"  {side}: stopped after {took} s (refused, silent)", flush=True)
    return figures


def caught(side: Kind, behind: Behind, folder: Path, *, empty: bool = False) -> Catch:
    """One run, shown at once."""
    catch = runs.catch_up(side, behind, folder / "pair", empty=empty)
    print(
        f"  {catch.side}: {catch.bytes / 1e6:,.0f} MB in {catch.transfer_s} s, {catch.mb_s:,.0f} MB/s; from its "
        f"connection {catch.from_connection_s} s, from its start {catch.from_start_s} s; queues after "
        f"{catch.queues_s} s; CPU {catch.slave_cpu_s} s of the slave, {catch.master_cpu_s} s of the master"
        + (f"; WRONG: {catch.wrong}" if catch.wrong else ""),
        flush=True,
    )
    return catch


def returns(side: Kind, folder: Path) -> list[float]:
    """How long a slave takes after its master is back, for several lengths of its absence."""
    brokers = runs.pair(side, folder / "pair")
    try:
        brokers.master.start()
        brokers.slave.start()
        took = [runs.comes_back(brokers, pause_s) for pause_s in PAUSES_S]
    finally:
        brokers.discard()
    print(f"  {side}: the slave was back after {took} s", flush=True)
    return took


def summary(figures: Figures) -> dict[str, dict[str, Any]]:
    """Medians, ratios of the rates, and whether the targets are met."""
    rows: dict[str, dict[str, Any]] = {}
    base = [p["apache"].mb_s for p in figures.catches.get(CATCH, [])]
    for name, pairs in figures.catches.items():
        ours = [p["trio"].mb_s for p in pairs]
        wrong = [w for p in pairs for c in p.values() for w in c.wrong]
        row: dict[str, Any] = {"trio": round(statistics.median(ours), 1), "wrong": wrong}
        if base:
            row["apache"] = round(statistics.median(base), 1)
            row["ratio"] = round(
                statistics.median(a / b for a, b in zip(ours, base, strict=True)), 3
            )
            row["met"] = row["ratio"] >= RATIO and not wrong
        rows[f"{name}, MB/s"] = row
    for name, sides in figures.seconds.items():
        limit = BACK_S if name == BACK else STOP_S
        row = {side: max(took) for side, took in sides.items()}
        rows[f"{name}, longest s"] = row | {"met": row["trio"] <= limit, "limit": limit}
    return rows


def table(rows: dict[str, dict[str, Any]]) -> str:
    """For people."""
    lines = [f"{'':<28}{'trio-mq':>10}{'Apache 5.4':>12}{'ratio':>8}  target"]
    for name, row in rows.items():
        target = f"<= {row['limit']} s" if "limit" in row else f">= {RATIO} of Apache"
        met = "" if "met" not in row else "met" if row["met"] else "MISSED"
        lines.append(
            f"{name:<28}{row['trio']:>10}{row.get('apache', '-'):>12}{row.get('ratio', '-'):>8}  {target}: {met}"
        )
    return "\n".join(lines)


def options(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="just bench-ha", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--megabytes", type=int, default=2000, help="that the slave lacks, in MB (2,000)"
    )
    parser.add_argument("--body", type=int, default=1000, help="bytes of a message's body (1,000)")
    parser.add_argument("--rounds", type=int, default=3, help="of the rows that catch up")
    parser.add_argument(
        "--only", action="append", default=[], metavar="ROW",
        help="rows whose name contains this; can be given several times. Rows: " + "; ".join(ROWS),
    )  # fmt: skip
    parser.add_argument("--cache", type=Path, default=None, help="where the stores are kept")
    parser.add_argument("--folder", type=Path, default=None, help="where pairs live meanwhile")
    parser.add_argument("--json", type=Path, default=None, help="where to write the figures")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Measure, print, write."""
    given = options(argv)
    rows = [row for row in ROWS if not given.only or any(o in row for o in given.only)]
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    folder = Path(tempfile.mkdtemp(prefix="trio-mq-ha-", dir=given.folder))
    try:
        behind = None
        if CATCH in rows or FULL in rows:
            behind = obtain(given.cache or folder, given.megabytes, given.body)
        figures = measure(behind, folder, rows, given.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    summed = summary(figures)
    print("\n" + table(summed))
    target = given.json or HERE / "results" / f"ha-{stamp}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "when": stamp, "cpus": os.cpu_count(), "python": platform.python_version(), "rows": summed,
        "figures": attrs.asdict(figures),
    }  # fmt: skip
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nfigures: {target}")


if __name__ == "__main__":
    main()
