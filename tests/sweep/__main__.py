"""``python -m tests.sweep``: cut the power after each disk operation of a broker's life, and see what comes back."""

from __future__ import annotations

import argparse
import sys
import time

from tests.sweep import faults
from tests.sweep.runner import Tally, fault_once, repeat, sweeps
from tests.sweep.sweep import Failure


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first workload")
    parser.add_argument("--cuts", type=int, help="end after so many power cuts (default: never)")
    parser.add_argument(
        "--outcomes", type=int, default=2, help="crashes that are tried at each cut"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    parser.add_argument("--cut", type=int, help="make only this cut of the workload --seed")
    parser.add_argument("--crash", type=int, default=0, help="with --cut: seed of the crash")
    parser.add_argument("--second", type=int, default=0, help="with --cut: cut of the recovery")
    parser.add_argument("--fault", choices=faults.FAULTS, help="only this fault of --seed")
    parser.add_argument("--at", type=int, default=1, help="with --fault: number of the operation")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Sweep, or repeat one failure; 1 if there was any."""
    options = parsed(arguments)
    if options.fault is not None:
        failed = fault_once(options.seed, options.fault, options.at)
        print(failed or "nothing fails")
        return int(failed is not None)
    if options.cut is not None:
        try:
            repeat(options.seed, options.cut, options.crash, options.second)
        except Failure as failure:
            print(failure)
            raise
        print("nothing fails")
        return 0
    total, began_s = Tally(), time.perf_counter()
    try:
        for seed, tally in sweeps(options.seed, options.outcomes, options.cuts, options.processes):
            total.add(tally)
            rate = total.cuts / (time.perf_counter() - began_s)
            print(f"seed {seed}: {tally} ({rate:.0f} cuts/s)", flush=True)
            for failure in tally.failures:
                print(failure, flush=True)
            if tally.failures and not options.keep_going:
                break
    except KeyboardInterrupt:
        pass
    print(f"in all: {total}, {time.perf_counter() - began_s:.0f} s")
    return int(bool(total.failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
