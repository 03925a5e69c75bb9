"""Processes of a test, ended with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.processes import Starter


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Starter]:
    """Starts ``trio-mq serve``."""
    starter = Starter(tmp_path)
    try:
        yield starter
    finally:
        starter.close()
