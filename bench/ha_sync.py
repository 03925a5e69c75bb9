"""Sends that wait for a slave: trio-mq's pair against Apache RocketMQ 5.4's, one run, one machine, one client.

In: ``--rounds``, ``--seconds``. Out: the rates of both and their ratio on the terminal (``python -m bench.ha_sync``).
Each pair is a SYNC_MASTER with ``inSyncReplicas=2`` and its slave, so that a send is answered when two processes have
it. How the two take turns, and what the client is, is told in :mod:`bench.compare`; here a turn begins when the slave,
which stood still while the other pair was measured, is in sync again. A send whose status is not SEND_OK has failed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs

from tests.interop import servers
from tests.interop.ha.pairs import MasterStatus, status_of
from tests.interop.polling import wait_for

from . import compare
from .compare import AGAIN_S, BROKER_JVM, SIDES, Contestant, Side

ROWS = ("sync x64, 128 B",)
#: Seconds of warm-up, at least and at most.
WARM_S = (10, 40)
#: Of Apache's rate.
TARGET = 0.8
MASTER = {"brokerId": "0", "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
SLAVE = {"brokerId": "1", "brokerRole": "SLAVE"}


@attrs.define
class PairContestant(Contestant):
    """Name server, master and slave of one side."""

    slave: servers.Server | None = None

    @property
    def pids(self) -> list[int]:
        """All its processes."""
        assert self.slave is not None
        assert self.slave.process is not None
        return [*super().pids, self.slave.process.pid]

    def discard(self) -> None:
        """End all of it, and its stores."""
        if self.slave is not None:
            self.slave.discard()
        super().discard()

    def wait_in_sync(self) -> None:
        """Until the master says that its slave has all."""

        def in_sync() -> bool:
            told = status_of(self.broker.address)
            if not isinstance(told, MasterStatus):
                return False
            return any(slave.ack == told.log_end for slave in told.slaves)

        wait_for(in_sync, f"the slave of {self.side} is in sync", timeout_s=60)


def start(side: Side, folder: Path) -> PairContestant:
    """A pair on empty stores, in sync."""
    made = compare.start(side, folder, MASTER)
    home = Path(tempfile.mkdtemp(prefix=f"{side}-slave-", dir=folder))
    kind: dict[str, Any] = {} if side == "trio" else {"jvm": BROKER_JVM}
    slave = servers.joining(side, home, made.broker.name, made.ns, settings=SLAVE, **kind)
    pair = PairContestant(side, made.home, made.broker, made.nameservers, slave=slave)
    try:
        slave.start()
        pair.wait_in_sync()
    except BaseException:
        pair.discard()
        raise
    return pair


def measure(folder: Path, rounds: int, seconds: int) -> dict[str, list[dict[Side, Any]]]:
    """The rows, warmed and in turns."""
    contestants: dict[Side, Contestant] = {}
    results: dict[str, list[dict[Side, Any]]] = {row: [] for row in ROWS}
    try:
        for side in SIDES:
            contestants[side] = start(side, folder)
        loads = compare.client(folder, seconds)
        with closing(loads.driver):
            warming: tuple[Side, ...] = ("apache", "trio", "apache")
            for side in warming:
                produce(loads, contestants, side, ROWS[0], WARM_S)
            for turn in range(rounds):
                for row in ROWS:
                    order = SIDES if turn % 2 == 0 else SIDES[::-1]
                    pair = {s: produce(loads, contestants, s, row, AGAIN_S) for s in order}
                    results[row].append(pair)
    finally:
        for contestant in contestants.values():
            contestant.discard()
    return results


def produce(
    loads: compare.Client,
    contestants: dict[Side, Contestant],
    side: Side,
    row: str,
    warm_s: tuple[int, int],
) -> dict[str, Any]:
    """One run of a row at one side, while the other one does not run."""
    with compare.alone(contestants, side) as contestant:
        assert isinstance(contestant, PairContestant)
        contestant.wait_in_sync()
        figures = loads.produce(contestant, row, warm_s)
    print(
        f"  {side}, {row}: {figures['rate']:,.0f}/s, {figures['broker_cpu_us']} us of CPU in both brokers, "
        f"{figures['failed']} failed"
    )
    return figures


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.ha_sync",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="pairs of measurements")
    parser.add_argument("--seconds", type=int, default=8, help="of each measurement")
    parser.add_argument("--folder", type=Path, default=None, help="where the stores live meanwhile")
    given = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="trio-mq-ha-sync-", dir=given.folder))
    try:
        results = measure(folder, given.rounds, given.seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    is_met = True
    for row, pairs in results.items():
        ratio = statistics.median(p["trio"]["rate"] / p["apache"]["rate"] for p in pairs)
        rates = {side: statistics.median(p[side]["rate"] for p in pairs) for side in SIDES}
        is_met &= ratio >= TARGET
        print(
            f"\n{row}, each with two brokers: trio-mq {rates['trio']:,.0f}/s, Apache {rates['apache']:,.0f}/s, "
            f"ratio {ratio:.2f}; to reach: {TARGET}"
        )
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
