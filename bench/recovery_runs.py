"""Runs of one recovery each: a broker started on a copy of a store, a scan of a log, a dry run.

In: a store, a side, what to switch off. Out: :class:`Start`, :class:`Scan`, :class:`DryRun`: seconds, memory, and what
was wrong with the result. Everything runs in child processes, which are watched from outside in the same way.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import attrs

from bench import recovery_store as stores
from bench.recovery_store import Origin
from tests.interop import servers
from tests.interop.polling import sleep
from tests.interop.raw import ConnectionGone, RawClient

Side = Literal["trio", "apache"]
GET_MAX_OFFSET, GET_BROKER_RUNTIME_INFO = 30, 28
LIMIT_S = 900.0
#: A rebuild that goes on behind the ready line has stopped when nothing comes for so long.
QUIET_S = 5.0
APACHE_JVM = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g")
WITHOUT_NUMPY = "import sys; sys.modules['numpy'] = None; "


@attrs.frozen
class Variant:
    """One contestant: a side, and for trio-mq the path and whether numpy may be used."""

    side: Side
    path: str = ""
    numpy: bool = True

    @property
    def name(self) -> str:
        """For tables."""
        if self.side == "apache":
            return "Apache 5.4"
        return f"trio-mq {self.path}{'' if self.numpy else ', no numpy'}"


APACHE = Variant("apache")
OURS = tuple(
    Variant("trio", path, numpy) for numpy in (True, False) for path in ("batch", "sequential")
)


@attrs.define
class Memory:
    """Highest memory of a process and its children so far, in MB; mapped files count in `total` only."""

    anonymous: float = 0.0
    total: float = 0.0

    def look(self, pid: int) -> None:
        """Take one sample."""
        anonymous = total = 0
        for each in family(pid):
            try:
                text = Path(f"/proc/{each}/status").read_text()
            except OSError:  # it has ended
                continue
            for line in text.splitlines():
                if line.startswith("RssAnon:"):
                    anonymous += int(line.split()[1])
                elif line.startswith("VmRSS:"):
                    total += int(line.split()[1])
        self.anonymous = max(self.anonymous, round(anonymous / 1024, 1))
        self.total = max(self.total, round(total / 1024, 1))


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def cpu_s(pid: int) -> float:
    """User and system time so far of a process, of all below it and of those below it that have ended."""
    ticks = 0
    for each in family(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return round(ticks / os.sysconf("SC_CLK_TCK"), 2)


@attrs.define
class Start:
    """A start. `ready_s`: from the first moment of the process; `whole_s`: until all queues are back, too."""

    variant: str
    ready_s: float = 0.0
    whole_s: float = 0.0
    cpu_s: float = 0.0
    phases_s: dict[str, float] = attrs.field(factory=dict)
    records_read: int | None = None
    memory: Memory = attrs.field(factory=Memory)
    wrong: list[str] = attrs.field(factory=list)

    @property
    def recovery_s(self) -> float:
        """What our own report says of its phases; 0 for Apache."""
        return sum(self.phases_s.values())


@attrs.define(kw_only=True)
class TrioOnStore(servers.TrioServer):
    """`trio-mq serve` without a name server, on a path of its own."""

    variant: Variant

    def command(self) -> list[str]:
        """Without numpy: as if it were not installed."""
        python, *rest = super().command()
        if self.variant.numpy:
            return [python, *rest]
        call = "from trio_mq.cli.app import main; sys.exit(main())"
        return [python, "-c", WITHOUT_NUMPY + call, *rest[2:]]

    def environment(self) -> dict[str, str]:
        """The path, by its variable."""
        optimized = "true" if self.variant.path == "batch" else "false"
        return {**environment(), "ROCKETMQ_USE_OPTIMIZED_RECOVERY": optimized}


def broker(variant: Variant, home: Path) -> servers.Server:
    """Not started yet; its store is `home`/store."""
    if variant.side == "apache":
        return servers.ApacheBroker(name="bench", home=home, nameservers=[], jvm=APACHE_JVM)
    return TrioOnStore(name="bench", home=home, nameservers=[], variant=variant)


def start(variant: Variant, origin: Origin, home: Path, linked: dict[Path, int]) -> Start:
    """Start a broker on the store that lies in `home`, wait until all is back, end it, look at what it left."""
    result = Start(variant.name)
    server = broker(variant, home)
    sign = '{"' if variant.side == "trio" else "boot success"
    log = home / "bench.log"
    began = time.monotonic()
    server.process = servers.Process(server.command(), home, "bench", server.environment())
    try:
        pid = server.process.pid

        def is_ready() -> bool:
            result.memory.look(pid)
            assert server.process is not None
            if not server.process.alive():
                raise RuntimeError(f"{variant.name} ended:\n{server.process.tail()}")
            return any(
                line.startswith(sign) or sign in line for line in log.read_text().splitlines()
            )

        wait(is_ready, f"{variant.name} is ready")
        result.ready_s = time.monotonic() - began
        whole_at, ends = all_back(server.address, origin, lambda: result.memory.look(pid))
        result.whole_s, result.cpu_s = max(whole_at - began, result.ready_s), cpu_s(pid)
        if isinstance(server, TrioOnStore):
            told: Any = server.ready_line()["recovery"]
            result.phases_s, result.records_read = told["seconds"], told["records"]
        result.wrong += wrong_ends(origin, ends)
        result.wrong += wrong_log_end(server.address, origin)
    finally:
        server.discard()
    result.wrong += stores.wrong_files(
        origin, home / "store", linked, keys_again=variant.side == "apache"
    )
    return result


def wait(condition: Callable[[], bool], what: str, every_s: float = 0.01) -> None:
    """Call it until it is true."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {LIMIT_S} s")
        sleep(every_s)


def all_back(
    address: str, origin: Origin, meanwhile: Callable[[], None]
) -> tuple[float, dict[tuple[str, int], int]]:
    """When all queues were back, and where they end; or when the last entry came, if they do not all come back."""
    before: dict[tuple[str, int], int] = {}
    last = time.monotonic()
    end = last + LIMIT_S
    with RawClient(address) as client:
        while time.monotonic() < end:
            asked = time.monotonic()
            ends = {queue: max_offset(client, queue) for queue in origin.ends}
            if ends != before:
                before, last = ends, asked
            if ends == origin.ends or asked - last > QUIET_S:
                break
            meanwhile()
            sleep(0.02)
    return last, before


def max_offset(client: RawClient, queue: tuple[str, int]) -> int:
    """One behind the last entry of a queue; -1 when the broker refuses to tell."""
    try:
        reply = client.call(GET_MAX_OFFSET, {"topic": queue[0], "queueId": str(queue[1])})
    except (ConnectionGone, TimeoutError):
        return -1
    return int(reply.ext["offset"]) if reply.code == 0 else -1


def wrong_ends(origin: Origin, ends: dict[tuple[str, int], int]) -> list[str]:
    """One line for all queues."""
    differ = {q: n for q, n in ends.items() if n != origin.ends[q]}
    if not differ:
        return []
    queue, count = next(iter(differ.items()))
    return [
        f"{len(differ)} of {len(ends)} queues end elsewhere, {sum(ends.values()):,} of {origin.records:,} entries; "
        f"{queue[0]}/{queue[1]} ends at {count:,}, not {origin.ends[queue]:,}"
    ]


def wrong_log_end(address: str, origin: Origin) -> list[str]:
    """Nothing may be cut from a whole log. A log that ends with a full segment may end behind its blank."""
    until_s = time.monotonic() + 30
    with RawClient(address) as client:
        # A broker that has only just begun refuses this for a moment.
        while (reply := client.call(GET_BROKER_RUNTIME_INFO)).code:
            if time.monotonic() > until_s:
                return [f"the log's end cannot be asked for: {reply.code} {reply.remark}"]
            sleep(0.1)
    told = reply.json()["table"]
    end = int(told["commitLogMaxOffset"])
    full = -(-origin.log_end // stores.SEGMENT) * stores.SEGMENT
    return (
        []
        if end in (origin.log_end, full)
        else [f"the log ends at {end:,}, not {origin.log_end:,}"]
    )


@attrs.define
class Scan:
    """A walk through the whole log and nothing else."""

    path: str
    numpy: bool
    cold: bool
    seconds: float
    cpu_s: float
    records: int
    bytes: int
    kept: float = 0.0
    memory: Memory = attrs.field(factory=Memory)
    wrong: list[str] = attrs.field(factory=list)


def scan(origin: Origin, path: str, *, numpy: bool, cold: bool) -> Scan:
    """One process, one thread; the time is that of the walk alone, not of starting Python."""
    kept = stores.forget_pages(origin.root / "commitlog") if cold else 1.0
    code = f"{'' if numpy else WITHOUT_NUMPY}from bench.recovery_scan import main; main()"
    out, memory, _ = watched([sys.executable, "-c", code, str(origin.root), path])
    told = json.loads(out)
    wrong = [] if told["records"] == origin.records else [f"found {told['records']:,} records"]
    if told["end"] != origin.log_end:
        wrong.append(f"ended at {told['end']:,}")
    return Scan(
        path,
        numpy,
        cold,
        told["seconds"],
        told["cpu_s"],
        told["records"],
        told["end"],
        kept,
        memory,
        wrong,
    )


@attrs.define
class DryRun:
    """`trio-mq recover --dry-run --json` on a whole store. `kept`: share of pages that were still in memory."""

    seconds: float
    cpu_s: float
    bytes: int
    kept: float
    memory: Memory
    wrong: list[str] = attrs.field(factory=list)

    @property
    def mb_s(self) -> float:
        """Of the log's bytes, by the time of the whole process."""
        return self.bytes / self.seconds / 1e6


def dry_run(origin: Origin, root: Path, expected_code: int = 0) -> DryRun:
    """Cold. No file may change."""
    kept = stores.forget_pages(root)
    before = stamps(root)
    command = [
        sys.executable,
        "-m",
        "trio_mq",
        "recover",
        "--dry-run",
        "--json",
        "--quiet",
        str(root),
    ]
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    out, memory, code = watched(command, check=False)
    seconds, now = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    wrong = []
    if code != expected_code:
        wrong.append(f"exit code {code}, not {expected_code}")
    if stamps(root) != before:
        wrong.append("files changed")
    told = json.loads(out)
    wrong += wrong_report(origin, told)
    return DryRun(seconds, round(spent, 2), origin.log_end, kept, memory, wrong)


def wrong_report(origin: Origin, told: dict[str, Any]) -> list[str]:
    """Whether a report saw the whole store; its fields are described in ``docs/reference/recover-json.md``."""
    if "phases" not in told:
        return [f"no report: {told.get('refusals')}"]
    log = told["phases"]["load"]["log"]
    wrong = []
    if log["records"] != origin.records:
        wrong.append(f"the report counts {log['records']:,} records, not {origin.records:,}")
    if log["records_end"] != origin.log_end:
        wrong.append(f"the report ends the log at {log['records_end']:,}, not {origin.log_end:,}")
    return wrong


def stamps(root: Path) -> dict[str, tuple[int, int, int]]:
    """Size, blocks and time of change of all files."""
    found = {}
    for file in root.rglob("*"):
        s = file.stat()
        found[str(file)] = (s.st_size, s.st_blocks, s.st_mtime_ns)
    return found


def watched(command: list[str], *, check: bool = True) -> tuple[str, Memory, int]:
    """Run a program to its end: what it printed, its memory, its exit code."""
    memory = Memory()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with subprocess.Popen(command, stdout=out, stderr=err, env=environment()) as child:
            while child.poll() is None:
                memory.look(child.pid)
                sleep(0.01)
        out.seek(0)
        err.seek(0)
        if check and child.returncode:
            raise RuntimeError(f"{command} ended with {child.returncode}:\n{err.read()[-3000:]}")
        return out.read(), memory, child.returncode


def environment() -> dict[str, str]:
    """Of our child processes: compiled modules are kept, as in an installed package, whatever this machine prefers."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "trio-mq-bench-pycache"),
    }
