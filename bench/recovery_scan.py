"""The child process of :func:`bench.recovery_runs.scan`: walks through one log, once, and prints what it took.

In: a store's folder and the name of a path, on the command line. Out: one JSON line. Reads only.
"""

from __future__ import annotations

import json
import sys
import time

from trio_mq.config import StoreSettings
from trio_mq.recovery.paths import Path
from trio_mq.recovery.walk import Walk
from trio_mq.store.disk import RealDisk
from trio_mq.store.segments import FilePool, Segments


def main() -> None:
    """Walk with all checks, the checksums among them, and hand nothing on."""
    root, path = sys.argv[-2:]
    disk, settings = RealDisk(), StoreSettings(path=root)
    segments = Segments(
        disk, FilePool(disk), f"{root}/commitlog", settings.mapped_file_size_commit_log
    )
    segments.load()
    walk = Walk(segments, segments.start, path=Path(path))
    began, cpu = time.perf_counter(), time.process_time()
    for _ in walk.lots():
        pass
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    print(
        json.dumps(
            {"records": walk.records, "end": walk.records_end, "seconds": seconds, "cpu_s": spent}
        )
    )


if __name__ == "__main__":
    main()
