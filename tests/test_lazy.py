"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PACKAGES = ["trio_mq.config", "trio_mq.protocol.bodies", "trio_mq.protocol.headers", "trio_mq"]
#: What a client needs, and what it must not drag in.
LEFT_OUT = ["trio", "asyncio", "rich", "typer", "numpy", "lark", "trio_mq.store", "trio_mq.broker"]
IMPORT_LIMIT_CPU_S = 0.150
#: With every public name, 0.16 s on a slow machine; a producer and a consumer are 0.13 s.
ALL_LIMIT_CPU_S = 0.300
ALL_NAMES = "import trio_mq\nfor name in trio_mq.__all__: getattr(trio_mq, name)\n"
MEASURED = """
import time
began = time.process_time()
import trio_mq
imported = time.process_time()
for name in trio_mq.__all__: getattr(trio_mq, name)
print(imported - began, time.process_time() - began)
"""


def python(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_there_and_listed(name: str) -> None:
    package = importlib.import_module(name)
    assert all(hasattr(package, public) for public in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = package.nothing_of_that_name


def test_a_client_loads_no_broker_and_no_event_loop() -> None:
    loaded = python(f"{ALL_NAMES}import sys\nprint(*sys.modules)").split()
    assert [name for name in LEFT_OUT if name in loaded] == []


@pytest.mark.slow
def test_a_client_is_imported_in_a_blink() -> None:
    """Processor time of modules that are compiled: the best of several, for the machine may be busy."""
    runs = [tuple(map(float, python(MEASURED).split())) for _ in range(10)]
    assert min(imported for imported, _ in runs) < IMPORT_LIMIT_CPU_S
    assert min(used for _, used in runs) < ALL_LIMIT_CPU_S
