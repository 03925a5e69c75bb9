"""``python -m tests.ha.sim``: run master and slaves through all that networks, disks and machines do to them."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

import trio

from tests.ha.sim.runner import Tally, leaf_of, repeat, run_many
from tests.ha.sim.scenario import scenario


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m tests.ha.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run only this one, and tell all about it")
    parser.add_argument("--first", type=int, default=0, help="the first of --runs seeds")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--log", action="store_true", help="with --seed: what brokers tell, too")
    return parser.parse_args(arguments)


class Timed(logging.Formatter):
    """Lines with the simulated time."""

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        try:
            now_s = trio.current_time()
        except RuntimeError:
            now_s = 0.0
        return f"{now_s:9.3f} {record.name}: {super().format(record)}"


def one(seed: int, *, tell: bool) -> int:
    """One run; 1 if it fails."""
    if tell:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(Timed())
        logging.basicConfig(level=logging.INFO, handlers=[handler])
    else:
        logging.disable(logging.CRITICAL)
    try:
        print(repeat(seed))
    except BaseException as error:
        traceback.print_exception(leaf_of(error))
        return 1
    print("nothing fails")
    return 0


def main(arguments: list[str]) -> int:
    """Run seeds; 1 if one failed."""
    options = parsed(arguments)
    if options.seed is not None:
        print(scenario(options.seed))
        return one(options.seed, tell=options.log)
    total, began_s = Tally(), time.perf_counter()
    for tally in run_many(options.first, options.runs, options.processes):
        total.add(tally)
        for failure in tally.failures:
            print(failure, flush=True)
    print(f"{total}, {time.perf_counter() - began_s:.0f} s")
    return int(bool(total.failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
