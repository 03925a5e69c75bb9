"""``python -m bench.messaging``: every kind of messaging under load, trio-mq and Apache RocketMQ 5.4 in one run.

In: ``--kinds``, ``--messages``, ``--kill``, ``--rounds``. Out: a table of counts and rates with their ratios on the
terminal, and all figures as JSON below ``bench/results/``. ``just bench-messaging`` calls it.

Both brokers are driven by one process of Apache's Java client, as in ``bench.compare``. Before anything is measured,
each side takes a load of each kind, Apache twice, so that its broker and the client are compiled. Then the two take
turns. With ``--kill`` each side runs alone: in the middle of each kind's load its broker is killed (kill -9) and
started again on the same store. Counts that a correct broker cannot have are faults; with a fault, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs

from .compare import CLIENT_JVM, HERE, SIDES, Contestant, Side, alone, anonymous_mb, cpu_s, start
from .messaging_loads import (
    KILL_SETTINGS,
    KINDS,
    SETTINGS,
    Loads,
    Outcome,
    loads,
    row,
    settle_s,
    wait_until_sent,
)

TARGET = 0.7
# A request waits for its reply: fewer of them say as much.
FEWER = {"request": 5}
SEED = 5


@attrs.frozen
class Measured:
    """One load on one side."""

    outcome: Outcome
    cpu_us: float
    restart_s: float = 0.0


def messages_of(kind: str, messages: int) -> int:
    """How many messages a kind gets."""
    return max(100, messages // FEWER.get(kind, 1))


def measure(client: Loads, contestant: Contestant, kind: str, messages: int) -> Measured:
    """One load on a broker that stays."""
    before = cpu_s(contestant.pids)
    load = client.start(contestant.ns, kind, messages)
    load.go()
    outcome = load.outcome()
    return Measured(outcome, round((cpu_s(contestant.pids) - before) * 1e6 / messages, 1))


def measure_killed(
    client: Loads, contestant: Contestant, kind: str, messages: int, share: float
) -> Measured:
    """One load on a broker that is killed when a share of the messages is acknowledged."""
    load = client.start(contestant.ns, kind, messages)
    load.go()
    wait_until_sent([load], share, messages)
    contestant.broker.kill()
    contestant.broker.start()
    outcome = load.outcome(patience_s=90, settle_s=settle_s(kind))
    return Measured(outcome, 0.0, round(contestant.broker.ready_s, 2))


Pairs = dict[str, list[dict[Side, Measured]]]


def compare(folder: Path, kinds: list[str], messages: int, rounds: int, warm: int) -> Pairs:
    """Both sides run, get warm, and take turns."""
    pairs: Pairs = {kind: [] for kind in kinds}
    contestants: dict[Side, Contestant] = {}
    client = loads(folder, CLIENT_JVM)
    try:
        for side in SIDES:
            contestants[side] = start(side, folder, SETTINGS)
        warming: tuple[Side, ...] = ("apache", "trio", "apache")
        for side in warming:
            with alone(contestants, side) as contestant:
                for kind in kinds:
                    said = measure(client, contestant, kind, messages_of(kind, warm)).outcome
                    print(f"  warming {side}, {kind}: {said.rate:,.0f}/s", flush=True)
        for turn in range(rounds):
            for kind in kinds:
                pair: dict[Side, Measured] = {}
                for side in SIDES if turn % 2 else SIDES[::-1]:
                    with alone(contestants, side) as contestant:
                        pair[side] = measure(client, contestant, kind, messages_of(kind, messages))
                        show(kind, side, pair[side], killed=False)
                pairs[kind].append(pair)
        for side, contestant in contestants.items():
            print(f"  {side}: {anonymous_mb(contestant.pids):.0f} MB anonymous memory")
    finally:
        client.driver.close()
        for contestant in contestants.values():
            contestant.discard()
    return pairs


def kill(folder: Path, kinds: list[str], messages: int, sides: list[Side]) -> Pairs:
    """One side after the other, one kill in each load."""
    pairs: Pairs = {kind: [{}] for kind in kinds}
    for side in sides:
        chance = random.Random(SEED)
        client = loads(folder, CLIENT_JVM)
        contestant = start(side, folder, KILL_SETTINGS)
        try:
            for kind in kinds:
                share = chance.uniform(0.3, 0.6)
                count = messages_of(kind, messages)
                got = measure_killed(client, contestant, kind, count, share)
                show(kind, side, got, killed=True)
                pairs[kind][0][side] = got
        finally:
            client.driver.close()
            contestant.discard()
    return pairs


def show(kind: str, side: Side, got: Measured, *, killed: bool) -> None:
    """A line as soon as it is known."""
    o = got.outcome
    faults = o.faults(kind, killed=killed)
    print(
        f"  {kind}, {side}: {o.rate:,.0f}/s, sends {o.send_rate:,.0f}/s, {o.received} of {o.expected} in {o.seconds} s,"
        f" late {o.late_p50_ms} ms (worst {o.late_max_ms}), {got.cpu_us} us; sends that failed {o.failed_sends},"
        f" twice {o.twice}, sent twice {o.twice_sent}, refused twice {o.refused_twice}"
        + (f"; FAULTS: {', '.join(faults)}" if faults else "")
        + (f"; the first failure: {o.why}" if o.why and not killed else ""),
        flush=True,
    )


def rate_table(pairs: Pairs) -> tuple[str, dict[str, Any]]:
    """Rates of both and their ratios, as text and as figures."""
    widths = [11, 11, 8, 11, 11, 8, 9]
    heads = ["trio-mq", "Apache", "ratio", "sends: trio", "Apache", "ratio", "target"]
    lines = [row("messages/s", heads, [w + 1 for w in widths])]
    rows: dict[str, Any] = {}
    for kind, turns in pairs.items():
        cells: list[str] = []
        figures: dict[str, Any] = {}
        for name in ("rate", "send_rate"):
            each = [{s: getattr(t[s].outcome, name) for s in SIDES} for t in turns]
            middle = {s: statistics.median(e[s] for e in each) for s in SIDES}
            ratio = statistics.median(e["trio"] / e["apache"] for e in each)
            cells += [f"{middle['trio']:,.0f}", f"{middle['apache']:,.0f}", f"{ratio:.2f}"]
            figures[name] = {**middle, "ratio": round(ratio, 3)}
        figures["met"] = figures["rate"]["ratio"] >= TARGET
        cells.append("met" if figures["met"] else "MISSED")
        lines.append(row(KINDS[kind], cells, [w + 1 for w in widths]))
        rows[kind] = figures
    return "\n".join(lines), rows


def count_table(pairs: Pairs, *, killed: bool) -> tuple[str, dict[str, list[str]]]:
    """Counts of all loads, and the faults among them."""
    widths = [10, 10, 8, 8, 11, 10, 9]
    heads = ["messages", "received", "lost", "twice", "sent twice", "unwanted", "s"]
    lines = [row("counts", heads, widths)]
    faults: dict[str, list[str]] = {}
    for kind, turns in pairs.items():
        for side in SIDES:
            for got in [t[side] for t in turns if side in t]:
                o = got.outcome
                counts = [
                    o.messages,
                    o.received,
                    o.lost,
                    o.twice + o.refused_twice,
                    o.twice_sent,
                    o.unwanted,
                ]
                lines.append(row(f"{kind}, {side}", [*counts, o.seconds], widths))
                wrong = o.faults(kind, killed=killed)
                if wrong:
                    faults.setdefault(f"{kind}, {side}", []).extend(wrong)
    return "\n".join(lines), faults


def options(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="just bench-messaging", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )  # fmt: skip
    parser.add_argument("--kinds", default=",".join(KINDS), help="of: " + ", ".join(KINDS))
    parser.add_argument("--messages", type=int, default=100_000, help="of each kind")
    parser.add_argument("--warm", type=int, default=None, help="messages of each warm-up; a third")
    parser.add_argument("--rounds", type=int, default=1, help="measurements of each kind")
    parser.add_argument("--kill", action="store_true", help="kill -9 in the middle of each load")
    parser.add_argument(
        "--sides", default=",".join(SIDES), help="with --kill: trio, apache or both"
    )
    parser.add_argument("--json", type=Path, default=None, help="where to write the figures")
    parser.add_argument("--folder", type=Path, default=None, help="where the stores live meanwhile")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Measure, print, write."""
    given = options(argv)
    kinds = given.kinds.split(",")
    unknown = set(kinds) - set(KINDS)
    if unknown:
        sys.exit(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    folder = Path(tempfile.mkdtemp(prefix="trio-mq-messaging-", dir=given.folder))
    rows: dict[str, Any] = {}
    try:
        if given.kill:
            pairs = kill(folder, kinds, given.messages, given.sides.split(","))
        else:
            warm = given.warm if given.warm is not None else given.messages // 3
            pairs = compare(folder, kinds, given.messages, given.rounds, warm)
            text, rows = rate_table(pairs)
            print("\n" + text)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    counts, faults = count_table(pairs, killed=given.kill)
    print("\n" + counts)
    target = given.json or HERE / "results" / f"messaging-{stamp}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "when": stamp, "kill": given.kill, "cpus": os.cpu_count(), "python": platform.python_version(),
        "rows": rows, "faults": faults,
        "measured": {k: [{s: attrs.asdict(m) for s, m in t.items()} for t in v] for k, v in pairs.items()},
    }  # fmt: skip
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nfigures: {target}")
    if faults:
        sys.exit("FAULTS: " + "; ".join(f"{k}: {', '.join(v)}" for k, v in faults.items()))


if __name__ == "__main__":
    main()
