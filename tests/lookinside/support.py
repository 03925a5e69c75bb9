"""Views of stores for tests: those of a World, and Apache's reference stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.golden_stores import unpack
from tests.recovery.stores import World
from trio_mq.lookinside.findings import Kind, Report
from trio_mq.lookinside.selection import Selection, select
from trio_mq.lookinside.verify import StateLook, verify
from trio_mq.lookinside.view import StoreView, open_view, view_with
from trio_mq.protocol.record import StoredMessage
from trio_mq.recovery.detect import detect
from trio_mq.store.disk import RealDisk


@contextmanager
def view_of(world: World) -> Iterator[StoreView]:
    """The store of a world, with the sizes that it was made with."""
    detected = detect(world.disk, world.root)
    view = view_with(world.disk, world.root, world.settings, detected)
    try:
        yield view
    finally:
        view.close()


@contextmanager
def golden_view(name: str, tmp_path: Path) -> Iterator[StoreView]:
    """A reference store of Apache's, whose sizes are found from its files."""
    view = open_view(RealDisk(), str(unpack(name, tmp_path)))
    try:
        yield view
    finally:
        view.close()


def chosen(view: StoreView, told: list[str] | None = None, **wanted: object) -> list[StoredMessage]:
    """The messages that a selection gives."""
    texts: list[str] = [] if told is None else told
    return [raw.decoded() for raw in select(view, Selection(**wanted), texts.append)]


def checked(world: World, state: StateLook | None = None) -> Report:
    """What a check of a world's store finds; the check changes no byte."""
    before = world.files()
    with view_of(world) as view:
        report = verify(view, state or StateLook(), lambda *_: None)
    assert world.files() == before
    return report


def kinds(report: Report) -> dict[Kind, int]:
    """How often each kind was found."""
    return dict(report.totals)
