"""Apache RocketMQ itself, from its published jars, and our own Java sources beside it.

In: ``peers/pom.xml`` and folders of ``*.java``. Out: class paths, and command lines that start a JVM.
Jars and classes are kept in ``TRIO_MQ_PEERS`` (default ``~/.cache/trio-mq-peers``), so a machine fetches them once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
VERSION = "5.4.0"
#: The last release line before 5, for what has to work there too.
OLD_VERSION = "4.9.7"
FAST_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_OPEN = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
)


def cache() -> Path:
    """Where jars, classes and the Go driver are kept."""
    return Path(os.environ.get("TRIO_MQ_PEERS") or Path.home() / ".cache" / "trio-mq-peers")


@contextmanager
def _alone() -> Iterator[None]:
    """Two halves of the suite that run at once do not fetch or build the same thing at once."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def missing_tools() -> list[str]:
    """Programs that the suite needs and this machine lacks."""
    return [tool for tool in ("java", "javac", "mvn", "go") if shutil.which(tool) is None]


def libraries(version: str = VERSION) -> str:
    """Class path of the jars; fetched through Maven at the first call."""
    folder = cache() / f"lib-{version}"
    with _alone():
        if not (folder / "complete").exists():
            command = [
                "mvn", "-q", "-B", "-f", str(HERE / "peers" / "pom.xml"), f"-Drocketmq.version={version}",
                "dependency:copy-dependencies", f"-DoutputDirectory={folder}",
            ]  # fmt: skip
            _run(command, "fetch the jars of Apache RocketMQ")
            (folder / "complete").touch()
    return f"{folder}/*"


def prepare_home(home: Path) -> None:
    """A folder as ``ROCKETMQ_HOME``: releases before 5 do not start without their files for logging."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("namesrv", "broker"):
        (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>\n")


def compiled(sources: Path) -> str:
    """Class path of a folder of Java sources and the jars; compiled again when a source changed."""
    files = sorted(sources.glob("*.java"))
    digest = hashlib.sha256(b"".join(f.name.encode() + f.read_bytes() for f in files)).hexdigest()[
        :16
    ]
    folder = cache() / f"classes-{VERSION}-{digest}"
    jars = libraries()
    with _alone():
        if not (folder / "complete").exists():
            folder.mkdir(parents=True, exist_ok=True)
            _run(
                ["javac", "-nowarn", "-cp", jars, "-d", str(folder), *map(str, files)],
                f"compile {sources}",
            )
            (folder / "complete").touch()
    return f"{folder}:{jars}"


def java(
    home: Path, class_path: str, main: str, *arguments: str, jvm: tuple[str, ...] = ()
) -> list[str]:
    """Command line of a JVM whose logs and state stay below ``home``."""
    home.mkdir(parents=True, exist_ok=True)
    return [
        "java", *_OPEN, f"-Duser.home={home}", "-Dfile.encoding=UTF-8", *jvm,
        "-cp", class_path, main, *arguments,
    ]  # fmt: skip


def go_driver() -> Path:
    """The Go program of ``go/``, built when needed (Go's own cache makes that cheap)."""
    target = cache() / "go-driver"
    with _alone():
        _run(["go", "build", "-o", str(target), "."], "build the Go driver", cwd=HERE / "go")
    return target


def _run(command: list[str], what: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"could not {what}:\n{done.stdout}\n{done.stderr}")
