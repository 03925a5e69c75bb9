"""How long starts take on a large store: trio-mq by both its paths, with numpy and without, and Apache RocketMQ 5.4.

In: ``--cache``, ``--rounds``, ``--only``. Out: a table with ratios and targets, all figures as JSON below
``bench/results/``. ``just bench-recovery`` calls it. A run whose result is wrong (an entry of a queue that is missing
or differs, another end of the log, keys that the index lacks, a log file that was written to) counts as missed,
however fast it was. ``docs/howto/measure.md`` says how to read the table.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from bench import recovery_runs as runs
from bench import recovery_store as stores
from bench.recovery_runs import APACHE, OURS, Start, Variant
from bench.recovery_store import Origin, State

RECORDS = 5_600_000
HERE = Path(__file__).parent
BEST = OURS[0]
CLEAN, REBUILD = "clean start", "rebuild after a clean stop"
STARTS = {
    CLEAN: State(),
    "abnormal start, queues whole": State(abort=True),
    "abnormal start, as Apache's broker leaves it": State(abort=True, marks=False),
    REBUILD: State(queues=False),
    # With the checkpoint there, Apache's broker begins at its times, and leaves all entries before them out.
    "rebuild after an abnormal end": State(abort=True, queues=False, checkpoint=False),
}
SCANS, DRY_RUN, FLAT = "scan", "dry run", "memory of a rebuild"
ROWS = (*STARTS, SCANS, DRY_RUN, FLAT)


@attrs.frozen
class Row:
    """One line of the table. `met` is None without a target."""

    name: str
    who: str
    value: float | None
    unit: str
    against: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    note: str = ""

    def text(self) -> str:
        """For people."""
        value = "-" if self.value is None else f"{self.value:,.{0 if self.value >= 1000 else 2}f}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        verdict = "" if self.met is None else ("met" if self.met else "MISSED")
        line = (
            f"{self.name:<46}{self.who:<32}{value:>12} {self.unit:<10}{ratio:>6} {self.against:<12}"
        )
        return f"{line}{self.target:<18}{verdict:<8}{self.note}".rstrip()


@attrs.define
class Bench:
    """What was measured so far."""

    origin: Origin
    work: Path
    rounds: int
    variants: list[Variant]
    starts: dict[str, dict[str, list[Start]]] = attrs.field(factory=dict)
    scans: list[runs.Scan] = attrs.field(factory=list)
    dry_runs: list[runs.DryRun] = attrs.field(factory=list)
    half: Start | None = None

    def measure_starts(self, name: str) -> None:
        """All variants in turns; those without numpy, which only shows what is lost without it, once."""
        stores.load_pages(self.origin.root)
        kept = self.starts.setdefault(name, {v.name: [] for v in self.variants})
        for turn in range(self.rounds):
            for variant in self.variants:
                if turn and not variant.numpy:
                    continue
                done = self.start(variant, self.origin, STARTS[name])
                kept[variant.name].append(done)
                print(f"  {name}: {told(done)}", flush=True)

    def start(self, variant: Variant, origin: Origin, state: State) -> Start:
        """On a fresh copy."""
        home = self.work / "broker"
        shutil.rmtree(home, ignore_errors=True)
        linked = stores.copy(origin, home / "store", state)
        try:
            return runs.start(variant, origin, home, linked)
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def first_starts(self) -> None:
        """Not counted: they fill the cache of compiled modules, and that of the system with programs."""
        for variant in self.variants:
            self.start(variant, self.origin, STARTS[CLEAN])

    def measure_scans(self) -> None:
        """Both paths, with numpy and without, in turns; from memory, and once from the disk."""
        for cold in (False, True):
            if not cold:
                stores.load_pages(self.origin.root)
            for _ in range(1 if cold else self.rounds):
                for variant in (v for v in self.variants if v.side == "trio"):
                    done = runs.scan(self.origin, variant.path, numpy=variant.numpy, cold=cold)
                    self.scans.append(done)
                    where = "from the disk" if cold else "from memory"
                    print(
                        f"  scan {where}, {variant.name}: {done.seconds:.2f} s {done.wrong or ''}",
                        flush=True,
                    )

    def measure_dry_runs(self) -> None:
        """On the store itself: a dry run changes nothing."""
        for _ in range(self.rounds):
            done = runs.dry_run(self.origin, self.origin.root)
            self.dry_runs.append(done)
            print(
                f"  dry run: {done.seconds:.2f} s, {done.mb_s:,.0f} MB/s {done.wrong or ''}",
                flush=True,
            )

    def measure_half(self) -> None:
        """A rebuild of half the log: its memory shall be that of the whole."""
        if BEST.name not in self.starts.get(REBUILD, {}):
            self.measure_starts(REBUILD)
        self.half = self.start(BEST, self.origin.half(), STARTS[REBUILD])
        print(f"  half the log: {told(self.half)}", flush=True)


def told(done: Start) -> str:
    """One line while it runs."""
    return (
        f"{done.variant}: ready after {done.ready_s:.2f} s, whole after {done.whole_s:.2f} s, recovery "
        f"{done.recovery_s:.2f} s, {done.memory.anonymous:.0f} MB {'; '.join(done.wrong)}"
    )


def median(values: list[float]) -> float | None:
    """None when nothing was measured."""
    return round(statistics.median(values), 3) if values else None


def whole(found: list[Start]) -> list[Start]:
    """Runs whose result was right."""
    return [s for s in found if not s.wrong]


def start_rows(bench: Bench) -> list[Row]:
    """Seconds to ready, and the share of recovery in them."""
    rows = []
    limits = {CLEAN: 1.0, "abnormal start, queues whole": 2.0}
    for name, by_variant in bench.starts.items():
        if not STARTS[name].queues:
            continue
        for who, found in by_variant.items():
            right = whole(found)
            value = median([s.ready_s for s in right])
            share = median([s.recovery_s for s in right]) if who != APACHE.name else None
            ratio = ratio_of_pairs(bench, name, who, lambda run: run.ready_s)
            limit = limits.get(name) if who == BEST.name else None
            met = bool(value and limit and value <= limit and len(right) == len(found))
            rows.append(
                Row(
                    name, who, value, "s", "of Apache" if ratio else "", ratio,
                    f"<= {limit} s" if limit else "", met if limit else None,
                    note(found, "" if share is None else f"{share:.2f} s of it recovery"),
                )
            )  # fmt: skip
    return rows


def ratio_of_pairs(
    bench: Bench, name: str, who: str, figure: Callable[[Start], float]
) -> float | None:
    """Median over the turns of a figure by Apache's in the same turn: a machine that slows down hits both."""
    apache = bench.starts[name].get(APACHE.name, [])
    if who == APACHE.name:
        return None
    pairs = zip(bench.starts[name][who], apache, strict=False)
    return median([figure(a) / figure(b) for a, b in pairs if not a.wrong and not b.wrong])


def rebuild_rows(bench: Bench) -> list[Row]:
    """Records a second of a rebuild: the time until all queues are back, less that of a clean start."""

    def rate(run: Start) -> float:
        clean = [s.ready_s for s in whole(bench.starts[CLEAN][run.variant])]
        return bench.origin.records / max(0.001, run.whole_s - (median(clean) or 0.0))

    rows = []
    for name in (n for n, state in STARTS.items() if not state.queues and n in bench.starts):
        for who, found in bench.starts[name].items():
            right = whole(found)
            ratio = ratio_of_pairs(bench, name, who, rate)
            judged = who == BEST.name and APACHE.name in bench.starts[name]
            memory = max((s.memory.anonymous for s in found), default=0.0)
            cpu = median([s.cpu_s for s in found])
            rows.append(
                Row(
                    name, who, median([rate(s) for s in right]), "records/s", "of Apache" if ratio else "", ratio,
                    ">= 0.8 of Apache" if judged else "",
                    bool(ratio and ratio >= 0.8 and len(right) == len(found)) if judged else None,
                    note(found, f"{memory:,.0f} MB, {cpu} s of CPU"),
                )
            )  # fmt: skip
    return rows


def note(found: list[Start], text: str) -> str:
    """What was wrong comes first."""
    wrong = [w for s in found for w in s.wrong]
    return f"WRONG: {wrong[0]}" if wrong else text


def scan_rows(bench: Bench) -> list[Row]:
    """The batch path against the sequential one: the ratio is how many times faster it is."""
    rows = []
    kept = max((s.kept for s in bench.scans if s.cold), default=0.0)
    for cold in (False, True):
        for numpy in (True, False):
            before, after = (
                [s for s in bench.scans if (s.path, s.numpy, s.cold) == (path, numpy, cold)]
                for path in ("sequential", "batch")
            )
            if not before:
                continue
            wrong = [w for s in before + after for w in s.wrong]
            ratio = median([a.seconds / b.seconds for a, b in zip(before, after, strict=True)])
            cpu = median([a.cpu_s / b.cpu_s for a, b in zip(before, after, strict=True)])
            seconds = median([s.seconds for s in after])
            assert ratio is not None
            assert seconds is not None
            judged = numpy and not cold
            text = f"{cpu:.2f} times by CPU time"
            text += f"; {kept:.0%} of the pages stayed in memory" if cold else ""
            rows.append(
                Row(
                    f"scan, {'cold' if cold else 'warm'}", f"trio-mq batch{'' if numpy else ', no numpy'}",
                    bench.origin.log_end / seconds / 1e6, "MB/s", "x sequential", ratio,
                    ">= 1.5 times" if judged else "", ratio >= 1.5 and not wrong if judged else None,
                    f"WRONG: {wrong[0]}" if wrong else text,
                )
            )  # fmt: skip
    return rows


def other_rows(bench: Bench) -> list[Row]:
    """Dry run and flat memory."""
    rows = []
    if bench.dry_runs:
        wrong = [w for d in bench.dry_runs for w in d.wrong]
        speed = median([d.mb_s for d in bench.dry_runs]) or 0.0
        anonymous = max(d.memory.anonymous for d in bench.dry_runs)
        total = max(d.memory.total for d in bench.dry_runs)
        kept = max(d.kept for d in bench.dry_runs)
        cpu = median([d.cpu_s for d in bench.dry_runs])
        text = (
            f"WRONG: {wrong[0]}"
            if wrong
            else f"{cpu} s of CPU; {kept:.0%} of the pages stayed in memory"
        )
        rows += [
            Row("dry run, cold", "trio-mq", speed, "MB/s", target=">= 400 MB/s", met=speed >= 400 and not wrong,
                note=text),
            Row("dry run, memory", "trio-mq", anonymous, "MB anon.", target="< 100 MB", met=anonymous < 100,
                note=f"{total:.0f} MB with mapped files"),
        ]  # fmt: skip
    if bench.half is not None:
        full = max(s.memory.anonymous for s in bench.starts[REBUILD][BEST.name])
        half = bench.half.memory.anonymous
        rows.append(
            Row("memory of a rebuild: half the log, all", BEST.name, full, "MB anon.", "of half's", full / half,
                "<= 1.25", full / half <= 1.25 and not bench.half.wrong, note([bench.half], f"half: {half:.0f} MB"))
        )  # fmt: skip
    return rows


def options(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="just bench-recovery",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "trio-mq-bench-recovery",
        help="folder that keeps the store for the next time; it is made in `store` there",
    )  # fmt: skip
    parser.add_argument(
        "--work",
        type=Path,
        default=None,
        help="where copies lie meanwhile; on the cache's disk they are cheap",
    )
    parser.add_argument("--records", type=int, default=RECORDS, help="in the store, at least")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each row")
    parser.add_argument(
        "--only", action="append", default=[], metavar="ROW",
        help="rows whose name contains this; can be given several times. Rows: " + "; ".join(ROWS),
    )  # fmt: skip
    parser.add_argument("--no-apache", action="store_true", help="measure trio-mq alone")
    parser.add_argument("--no-slow", action="store_true", help="leave out the runs without numpy")
    parser.add_argument("--json", type=Path, default=None, help="where to write the figures")
    return parser.parse_args(argv)


def measure(bench: Bench, wanted: list[str]) -> None:
    """All rows that are wanted. Rebuilds need the clean start: it is what their rate leaves out."""
    steps: dict[str, Callable[[], None]] = {
        SCANS: bench.measure_scans, DRY_RUN: bench.measure_dry_runs, FLAT: bench.measure_half,
    }  # fmt: skip
    rebuilds = any(not STARTS[row].queues for row in wanted if row in STARTS)
    if rebuilds and CLEAN not in wanted:
        wanted = [CLEAN, *wanted]
    if CLEAN in wanted or any(row in STARTS for row in wanted):
        bench.first_starts()
    for row in wanted:
        if row in STARTS:
            bench.measure_starts(row)
        else:
            steps[row]()


def main(argv: list[str] | None = None) -> None:
    """Measure, print, write."""
    given = options(argv)
    wanted = [r for r in ROWS if not given.only or any(o in r for o in given.only)]
    if not wanted:
        raise SystemExit(f"no row is called like {given.only}; see --help")
    given.cache.mkdir(parents=True, exist_ok=True)
    origin = stores.obtain(given.cache, given.records)
    print(
        f"store: {origin.log_end / 1e9:.2f} GB of log, {origin.records:,} records, {origin.keys:,} keys"
    )
    variants = [v for v in OURS if v.numpy or not given.no_slow]
    variants += [] if given.no_apache else [APACHE]
    with tempfile.TemporaryDirectory(prefix="work-", dir=given.work or given.cache) as work:
        bench = Bench(origin, Path(work), given.rounds, variants)
        measure(bench, wanted)
    rows = [*start_rows(bench), *rebuild_rows(bench), *scan_rows(bench), *other_rows(bench)]
    print("\n" + "\n".join(row.text() for row in rows))
    write(given, bench, rows)


def write(given: argparse.Namespace, bench: Bench, rows: list[Row]) -> None:
    """All figures, for later."""
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    target = given.json or HERE / "results" / f"recovery-{stamp}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "when": stamp,
        "machine": {
            "python": platform.python_version(), "cpus": os.cpu_count(), "system": platform.platform(),
        },
        "records": bench.origin.records, "log_bytes": bench.origin.log_end, "keys": bench.origin.keys,
        "rows": [attrs.asdict(row) for row in rows],
        "starts": {n: {w: [attrs.asdict(s) for s in f] for w, f in b.items()} for n, b in bench.starts.items()},
        "half": None if bench.half is None else attrs.asdict(bench.half),
        "scans": [attrs.asdict(s) for s in bench.scans],
        "dry_runs": [{**attrs.asdict(d), "mb_s": d.mb_s} for d in bench.dry_runs],
    }  # fmt: skip
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nfigures: {target}")


if __name__ == "__main__":
    main()
