"""The disk that keeps changes to itself: the contract of every disk, a base that stays as it is, what is reported."""

from __future__ import annotations

import errno
import inspect
import os
import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_mq.store import scratch as scratch_module
from trio_mq.store.disk import Disk, RealDisk
from trio_mq.store.overlay import Change, OverlayDisk
from trio_mq.store.scratch import PAGE_BYTES, Scratch
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk

from . import test_disk as contract
from .test_disk import get, put

MIB = 1 << 20


def read_only(disk: MemoryDisk) -> MemoryDisk:
    """A disk on which every change fails from now on."""
    disk.fail_when(lambda operation: True, errno.EROFS)
    return disk


def small(disk: Disk) -> OverlayDisk:
    """An overlay that keeps three pages in memory, so that both places are used."""
    return OverlayDisk(disk, scratch=Scratch(3 * PAGE_BYTES))


# -- the contract of every disk. The root is in the base.

LOCKS = "test_a_lock_writes_its_content_and_can_be_taken_again_after_release"


@pytest.fixture(params=["memory", "real", "no room for temporary files"])
def disk(request, tmp_path):
    base: Disk = RealDisk()
    if request.param == "memory":
        base = MemoryDisk()
    base.make_dirs(str(tmp_path / "root"))
    if isinstance(base, MemoryDisk):
        read_only(base)
    else:
        (tmp_path / "root").chmod(0o555)
    if request.param == "no room for temporary files":
        yield OverlayDisk(base, scratch=Scratch(folder=str(tmp_path / "missing")))
    else:
        yield OverlayDisk(base)
    assert base.list_dir(str(tmp_path / "root")) == []


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


for _name, _function in inspect.getmembers(contract, inspect.isfunction):
    _wants = inspect.signature(_function).parameters
    if _name.startswith("test_") and "disk" in _wants and _name != LOCKS:
        globals()[_name] = _function


# -- files of the base


@pytest.fixture(params=["memory", "real"])
def base(request) -> Disk:
    return RealDisk() if request.param == "real" else MemoryDisk()


@pytest.fixture
def path(base, tmp_path) -> str:
    """A file of the base: two and a half pages of data, then a hole of 1 MiB, and some data."""
    base.make_dirs(str(tmp_path / "root"))
    path = str(tmp_path / "root" / "f")
    file = base.open(path, create=True)
    file.write(bytes(range(1, 101)) * 100, 0)
    file.truncate(10_000 + MIB)
    file.write(b"end", 10_000 + MIB)
    file.close()
    return path


def differences(one: bytes, other: bytes) -> int:
    size = max(len(one), len(other))
    pairs = zip(one.ljust(size, b"\0"), other.ljust(size, b"\0"), strict=True)
    return sum(a != b for a, b in pairs)


def test_what_is_written_shows_in_every_open_file_and_never_in_the_base(base, path):
    before, modified_ms = get(base, path), base.modified_ms(path)
    overlay = OverlayDisk(base, clock=ManualClock(modified_ms + 1000))
    writer, reader = overlay.open(path), overlay.open(path, readonly=True)
    assert reader.read(20_000_000, 0) == before
    writer.write(b"XYZ", 4094)
    wanted = before[:4094] + b"XYZ" + before[4097:]
    assert reader.read(20_000_000, 0) == wanted
    assert reader.read_cached(8, 4090) == wanted[4090:4098]
    writer.close()
    assert get(overlay, path) == wanted
    assert overlay.modified_ms(path) == modified_ms + 1000
    reader.close()
    assert overlay.changes() == [Change(path, "changed", 3, len(before), len(before))]
    assert (get(base, path), base.modified_ms(path)) == (before, modified_ms)


def test_equal_bytes_are_no_change(base, path):
    before = get(base, path)
    overlay = OverlayDisk(base)
    file = overlay.open(path)
    file.write(before[5000:9000], 5000)
    file.write(bytes(MIB), 10_000)
    file.truncate(len(before))
    file.sync()
    overlay.remove(path)
    put(overlay, path, before)
    assert overlay.changes() == []
    overlay.rename(path, f"{path}2")
    assert overlay.changes() == [
        Change(path, "removed", len(before), len(before)),
        Change(f"{path}2", "created", len(before) - before.count(0), None, len(before)),
    ]
    overlay.rename(f"{path}2", path)
    assert overlay.changes() == []


def test_what_was_cut_off_does_not_come_back(base, path):
    overlay = OverlayDisk(base)
    file = overlay.open(path)
    size = file.size()
    file.truncate(5000)
    file.truncate(9000)
    before = get(base, path)
    assert file.read(20_000, 0) == before[:5000] + bytes(4000)
    assert file.next_data(5000) == 9000
    file.write(b"x", 8999)
    [change] = overlay.changes()
    assert change == Change(path, "changed", 5000 + 3, size, 9000)
    file.truncate(0)
    assert file.read(5, 0) == b""
    assert overlay.changes() == [Change(path, "changed", 10_003, size, 0)]


def test_holes_stay_known(base, path):
    overlay = OverlayDisk(base)
    file = overlay.open(path)
    end = file.size()
    file.write(b"k", 500_000)
    assert 12_288 <= file.next_data(12_288) <= 500_000
    assert file.next_data(12_288) > 400_000
    assert 900_000 < file.next_data(503_808) <= MIB + 10_000
    file.write(bytes(end - 503_808), 503_808)  # zeros over the last data of the base
    assert file.next_data(503_808) == end
    assert file.next_data(end + 5) == end + 5


def test_mapped_memory_of_a_file_of_the_base(base, path):
    before = get(base, path)
    overlay = OverlayDisk(base)
    file = overlay.open(path)
    file.write(b"written", 100)
    memory = file.map(9_001)
    assert bytes(memory) == before[:100] + b"written" + before[107:9_001]
    memory[8_000:8_002] = b"##"
    file.write(b"over the end of the memory", 8_990)
    wanted = bytearray(before)
    wanted[100:107], wanted[8_000:8_002] = b"written", b"##"
    wanted[8_990:9_016] = b"over the end of the memory"
    assert file.read(20_000_000, 0) == bytes(wanted)
    assert bytes(memory) == wanted[:9_001]
    assert file.next_data(0) == 0
    [change] = overlay.changes()
    assert change.bytes == differences(before, wanted)
    memory.release()
    file.close()
    again = overlay.open(path)
    longer = again.map(10_000)
    assert bytes(longer) == wanted[:10_000]
    longer[9_999:] = b"!"
    longer.release()
    again.truncate(9_998)
    assert again.read(20_000, 9_000) == wanted[9_000:9_998]
    again.truncate(10_010)
    assert again.read(20_000, 9_997) == wanted[9_997:9_998] + bytes(12)
    again.close()
    assert get(base, path) == before


def test_a_large_sparse_file_is_mapped_without_reading_it(tmp_path, monkeypatch):
    """As an index file is: 420 MB, of which some pages hold something."""
    path, size = str(tmp_path / "f"), 420_000_040
    disk = RealDisk()
    file = disk.open(path, create=True)
    file.truncate(size)
    file.write(b"head", 0)
    file.write(b"deep", 300_000_000)
    file.close()
    overlay = OverlayDisk(disk)
    for name in (path, f"{path}.new"):
        file = overlay.open(name, create=True)
        file.truncate(size)
        tracemalloc.start()
        memory = file.map(size)
        memory[20_000_000:20_000_004] = b"some"
        file.write(b"more", 30_000_000)
        assert memory[30_000_000:30_000_004] == b"more"
        changes = overlay.changes()
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
        tracemalloc.stop()
        assert changes[-1].bytes == 8
        memory.release()
        file.close()
    # where the kernel does not tell which pages were copied, all of them are compared
    monkeypatch.setattr(scratch_module, "_PAGEMAP", str(tmp_path / "missing"))
    file = overlay.open(path)
    file.truncate(40_000_000)
    file.close()
    changed, created = overlay.changes()
    assert changed == Change(path, "changed", 8 + 4, size, 40_000_000)
    assert created == Change(f"{path}.new", "created", 8, None, size)
    assert os.stat(path).st_blocks < 1000


# -- names


def test_names_of_the_base(base, path):
    root = os.path.dirname(path)
    base.make_dirs(f"{root}/d/e")
    put(base, f"{root}/d/e/1", b"one")
    put(base, f"{root}/d/2", b"two!")
    if isinstance(base, MemoryDisk):
        read_only(base)
    overlay = OverlayDisk(base)
    opened = overlay.open(f"{root}/d/e/1")
    overlay.remove_tree(f"{root}/d")
    assert overlay.list_dir(root) == ["f"]
    assert not overlay.exists(f"{root}/d/e/1")
    assert overlay.list_dir(f"{root}/d") == []
    assert opened.read(5, 0) == b"one"
    opened.write(b"ONE", 0)
    assert opened.read(5, 0) == b"ONE"
    with pytest.raises(FileNotFoundError):
        overlay.open(f"{root}/d/e/1")
    overlay.make_dirs(f"{root}/d/new")
    assert overlay.list_dir(f"{root}/d") == ["new"]
    overlay.rename(path, f"{root}/d/moved")
    assert overlay.list_dir(root) == ["d"]
    assert get(overlay, f"{root}/d/moved") == get(base, path)
    size = base.size(path)
    assert overlay.changes() == [
        Change(f"{root}/d/2", "removed", 4, 4),
        Change(f"{root}/d/e", "removed", 0, is_dir=True),
        Change(f"{root}/d/e/1", "removed", 3, 3),
        Change(f"{root}/d/moved", "renamed", 0, size, size, old_path=path),
        Change(f"{root}/d/new", "created", 0, is_dir=True),
    ]
    opened.close()


def test_a_state_file_is_replaced(base, path):
    """As the peers do it: the old one becomes the backup, which is there already, and a new one is written."""
    put(base, f"{path}.bak", b"old")
    overlay = OverlayDisk(base)
    overlay.rename(path, f"{path}.bak")
    put(overlay, path, b"new")
    changes = {
        change.path: (change.kind, change.size_before, change.size) for change in overlay.changes()
    }
    size = base.size(path)
    assert changes == {path: ("changed", size, 3), f"{path}.bak": ("changed", 3, size)}


def test_the_lock_is_not_taken(base, path):
    root = os.path.dirname(path)
    held = base.lock(f"{root}/lock", b"lock")
    overlay = OverlayDisk(base)
    overlay.lock(f"{root}/lock", b"mine").release()
    assert overlay.changes() == []
    held.release()


def test_times_come_from_the_clock_once_a_file_is_changed(base, path):
    overlay = OverlayDisk(base, clock=ManualClock(5_000))
    assert overlay.modified_ms(path) == base.modified_ms(path)
    overlay.open(path).write(b"x", 0)
    put(overlay, f"{path}2", b"")
    assert overlay.modified_ms(path) == overlay.modified_ms(f"{path}2") == 5_000


def test_usage_is_that_of_the_base_also_for_new_folders(base, path):
    overlay = OverlayDisk(base)
    folder = f"{os.path.dirname(path)}/new/one"
    overlay.make_dirs(folder)
    assert overlay.usage(folder).total == base.usage(os.path.dirname(path)).total


# -- another process changes the base meanwhile


def test_a_file_that_grows_is_seen_until_it_is_changed(base, path):
    overlay = OverlayDisk(base)
    file, other = overlay.open(path), base.open(path)
    size = file.size()
    other.write(b"more", size)
    assert file.size() == size + 4
    assert file.read(9, size) == b"more"
    file.write(b"x", 0)
    other.write(b"even more", size + 4)
    assert file.size() == overlay.size(path) == size + 4
    assert file.read(99, size) == b"more"
    assert overlay.changes()[0].bytes == 1


def test_a_file_that_gets_shorter_is_an_error_that_says_so(base, path):
    overlay = OverlayDisk(base)
    reader, changed, mapped = (overlay.open(path) for _ in range(3))
    base.open(path).truncate(6000)
    with pytest.raises(OSError, match="got shorter") as caught:
        reader.read(100, 5990)
    assert caught.value.filename == path
    assert reader.read(100, 5000) == get(base, path)[5000:5100]
    with pytest.raises(OSError, match="got shorter"):
        reader.next_data(100)
    changed.write(b"x", 0)
    base.open(path).truncate(3000)
    for call in (
        lambda: changed.read(10, 4100),
        lambda: changed.write(b"y", 4100),
        lambda: mapped.map(5000),
    ):
        with pytest.raises(OSError, match="got shorter"):
            call()


def test_mapped_memory_of_a_file_that_gets_shorter_ends_in_no_signal(tmp_path):
    path = str(tmp_path / "f")
    put(RealDisk(), path, b"x" * 100_000)
    file = OverlayDisk(RealDisk()).open(path)
    memory = file.map(100_000)
    os.truncate(path, 10)
    for call in (lambda: file.read(10, 50_000), lambda: file.write(b"y", 50_000)):
        with pytest.raises(OSError, match="got shorter"):
            call()
    memory.release()


def test_a_file_that_goes_is_an_error_that_says_so(base, path):
    overlay = OverlayDisk(base)
    with_change = overlay.open(path)
    with_change.write(b"x", 0)
    base.remove(path)
    assert with_change.read(3, 0) == b"x\x02\x03"
    with_change.close()
    with pytest.raises(FileNotFoundError, match="another process") as caught:
        overlay.open(path)
    assert caught.value.filename == path
    overlay.changes()


# -- room for the changes


def test_much_is_kept_in_the_temporary_file_and_little_in_memory(base, path):
    overlay = small(base)
    file = overlay.open(f"{path}.new", create=True)
    for at in range(0, 40 * PAGE_BYTES, 1000):
        file.write(at.to_bytes(4, "big") * 250, at)
    assert overlay.scratch.file_bytes >= 37 * PAGE_BYTES
    wanted = b"".join(at.to_bytes(4, "big") * 250 for at in range(0, 40 * PAGE_BYTES, 1000))
    assert file.read(len(wanted) + 1, 0) == wanted
    assert file.read(5000, 30_000) == wanted[30_000:35_000]


def test_a_rebuild_does_not_grow(tmp_path):
    overlay = OverlayDisk(MemoryDisk())
    overlay.make_dirs("/q")
    tracemalloc.start()
    for number in range(8):
        file = overlay.open(f"/q/{number}", create=True)
        for at in range(0, 4 * MIB, 1 << 16):
            file.write(bytes([number + 1]) * (1 << 16), at)
        file.close()
    assert tracemalloc.get_traced_memory()[1] < 12 * MIB
    tracemalloc.stop()
    assert [change.bytes for change in overlay.changes()] == [0] + [4 * MIB] * 8


def test_a_full_disk_of_temporary_files_is_made_up_for_by_memory(base, path, monkeypatch):
    overlay = small(base)

    def full(fd: int, data: bytes, position: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(scratch_module, "_write_all", full)
        file = overlay.open(path)
        file.write(b"y" * 50_000, 0)
    file.write(b"z" * 50_000, 50_000)
    assert file.read(100_000, 0) == b"y" * 50_000 + b"z" * 50_000


def test_mapped_memory_that_is_let_go_comes_back():
    mapped = Scratch().new_map(48 * MIB)
    for at in range(0, 48 * MIB, 16_384):
        mapped.write(at.to_bytes(4, "big") * 2048, at)
        mapped.memory[at : at + 4] = b"mark"
    for at in range(0, 48 * MIB, 16_384):
        assert mapped.read(8, at) == b"mark" + at.to_bytes(4, "big")
        assert mapped.memory[at : at + 8] == b"mark" + at.to_bytes(4, "big")


def test_without_a_temporary_file_mapped_memory_is_plain_memory(base, path, tmp_path, monkeypatch):
    def full(fd: int, size: int) -> None:
        raise OSError(errno.EFBIG, "too large")

    for scratch in (Scratch(folder=str(tmp_path / "missing")), Scratch()):
        overlay = OverlayDisk(base, scratch=scratch)
        file = overlay.open(f"{path}.new", create=True)
        file.truncate(20_000)
        file.write(b"abc", 5_000)
        with monkeypatch.context() as patched:
            patched.setattr(os, "ftruncate", full)
            memory = file.map(20_000)
        memory[9_000:9_002] = b"de"
        assert file.next_data(8_000) <= 9_000
        assert file.read(6, 8_999) == b"\0de\0\0\0"
        assert overlay.changes() == [Change(f"{path}.new", "created", 5, None, 20_000)]
        memory.release()


def test_what_the_base_does_not_have_in_memory_is_not_there_at_once(base, path):
    overlay = OverlayDisk(base)
    file = overlay.open(path)
    file.write(b"x" * 5000, 0)
    if isinstance(base, MemoryDisk):
        base.cold = True
        assert file.read_cached(10, 9_000) is None
    else:
        assert file.read_cached(10, 9_000) in (None, file.read(10, 9_000))
    assert file.read_cached(10, 4_090) == b"x" * 10
    assert len(file.read(10, 9_000)) == 10


def test_a_file_cannot_replace_a_folder(base, path):
    overlay = OverlayDisk(base)
    overlay.make_dirs(f"{path}.d")
    with pytest.raises(IsADirectoryError):
        overlay.rename(path, f"{path}.d")
    with pytest.raises(FileNotFoundError):
        overlay.rename(f"{path}.d", f"{path}.e")


# -- the same as a disk that really changes

NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a"])
POSITIONS = st.one_of(st.integers(0, 300), st.integers(8000, 8500), st.integers(0, 30_000))
DATA = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 2), st.integers(1, 13_000)),
)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), NAMES, POSITIONS, DATA),
    st.tuples(st.just("write"), NAMES, POSITIONS, DATA),
    st.tuples(st.just("truncate"), NAMES, POSITIONS),
    st.tuples(st.just("map"), NAMES, POSITIONS, st.integers(1, 14_000), st.integers(0, 255)),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("remove_tree"), st.sampled_from(["d", "d/e"])),
    st.tuples(st.just("make_dirs"), st.sampled_from(["d", "d/e"])),
)


@dataclass
class Side:
    """A disk with open files, and what an operation did on it."""

    disk: Disk
    root: str

    def do(self, kind: str, name: str, *rest) -> str:
        path = f"{self.root}/{name}"
        try:
            if kind in ("write", "truncate", "map"):
                file = self.disk.open(path, create=True)
                try:
                    self.change(file, kind, *rest)
                finally:
                    file.close()
            elif kind == "rename":
                self.disk.rename(path, f"{self.root}/{rest[0]}")
            else:
                getattr(self.disk, kind)(path)
        except (OSError, ValueError) as error:
            return type(error).__name__
        return "done"

    def change(self, file, kind: str, position: int, *rest) -> None:
        if kind == "write":
            file.write(rest[0], position)
        elif kind == "truncate":
            file.truncate(position)
        else:
            size, byte = rest
            memory = file.map(size)
            memory[position % size : position % size + 10] = bytes([byte]) * min(
                10, size - position % size
            )
            memory.release()

    def files(self, folder: str = "") -> dict[str, bytes | None]:
        """Content by name; None for a folder."""
        found: dict[str, bytes | None] = {}
        for name in self.disk.list_dir(f"{self.root}{folder}"):
            inner = f"{folder}/{name}"
            if self.disk.is_dir(self.root + inner):
                found[inner] = None
                found.update(self.files(inner))
            else:
                assert self.disk.exists(self.root + inner)
                found[inner] = get(self.disk, self.root + inner)
        return found


def check_changes(changes: list[Change], before: dict, after: dict, root: str) -> None:
    """What is reported is what two looks at all files show."""
    told = {change.path.removeprefix(root): change for change in changes}
    assert len(told) == len(changes)
    moved = {(change.old_path or "").removeprefix(root) for change in changes}
    for name in before | after:
        old, new = before.get(name), after.get(name)
        if name not in before:
            source = (told[name].old_path or "").removeprefix(root)
            assert told[name].kind == ("renamed" if source else "created")
            if new is not None:
                assert told[name].bytes == differences(before.get(source) or b"", new)
        elif name not in after:
            assert name in moved or told[name].kind == "removed"
        elif old == new:
            assert name not in told
        else:
            wanted = Change(root + name, "changed", differences(old, new), len(old), len(new))
            assert told[name] == wanted


@pytest.mark.parametrize("kind", ["memory", "real"])
@settings(max_examples=60, deadline=None)
@given(
    start=st.dictionaries(NAMES, st.lists(st.tuples(POSITIONS, DATA), max_size=3)),
    operations=st.lists(OPERATIONS, max_size=12),
)
def test_any_operations_have_the_same_results_as_on_a_disk_of_its_own(
    tmp_path_factory, kind, start, operations
):
    root = str(tmp_path_factory.mktemp("same"))
    base: Disk = RealDisk() if kind == "real" else MemoryDisk()
    plain = MemoryDisk()
    for disk in (base, plain):
        disk.make_dirs(root)
        for name, writes in start.items():
            disk.make_dirs(os.path.dirname(f"{root}/{name}"))
            file = disk.open(f"{root}/{name}", create=True)
            for position, data in writes:
                file.write(data, position)
            file.close()
    before = Side(base, root).files()
    if isinstance(base, MemoryDisk):
        read_only(base)
    overlay, other = Side(small(base), root), Side(plain, root)
    for operation in operations:
        assert overlay.do(*operation) == other.do(*operation)
        assert overlay.files() == other.files()
    for name, data in overlay.files().items():
        if data is not None:
            file = overlay.disk.open(root + name, readonly=True)
            for at in range(0, len(data), 700):
                first = len(data) - len(data[at:].lstrip(b"\0"))
                assert at <= file.next_data(at) <= first
            file.close()
    assert Side(base, root).files() == before
    check_changes(overlay.disk.changes(), before, other.files(), root)
