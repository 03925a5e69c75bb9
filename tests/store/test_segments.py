"""Rows of equal-sized files: names, sizes, what is found at a start, cutting, durability of bytes and names."""

from __future__ import annotations

import errno
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.errors import ForeignFormat
from trio_mq.store.disk import Disk, RealDisk
from trio_mq.store.segments import (
    ColdData,
    FilePool,
    Segments,
    make_segment_file,
    pool_limit,
    warmed,
)
from trio_mq.testing.disk import MemoryDisk

SIZE = 100
NAME_0, NAME_1, NAME_2 = (f"{start:020d}" for start in (0, SIZE, 2 * SIZE))


@pytest.fixture(params=["real", "memory"])
def disk(request):
    return RealDisk() if request.param == "real" else MemoryDisk()


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "row")


def row(disk: Disk, root: str, *, pool: FilePool | None = None) -> Segments:
    return Segments(disk, pool or FilePool(disk), root, SIZE)


def make_file(disk: Disk, path: str, size: int) -> None:
    disk.make_dirs(path.rpartition("/")[0])
    file = disk.open(path, create=True)
    file.truncate(size)
    file.close()


def test_files_are_named_by_their_offset_and_have_their_full_size(disk, root):
    segments = row(disk, root)
    assert segments.empty
    assert (segments.start, segments.end) == (0, 0)
    segments.create(2 * SIZE)
    segments.create(3 * SIZE)
    assert disk.list_dir(root) == [NAME_2, f"{3 * SIZE:020d}"]
    assert [disk.size(f"{root}/{name}") for name in disk.list_dir(root)] == [SIZE, SIZE]
    assert (segments.start, segments.end) == (2 * SIZE, 4 * SIZE)
    assert segments.starts == [2 * SIZE, 3 * SIZE]
    assert [segments.has(at) for at in (199, 200, 399, 400, -1)] == [
        False, True, True, False, False,
    ]  # fmt: skip
    segments.close()


def test_bytes_read_back_and_new_files_are_zero(disk, root):
    segments = row(disk, root)
    segments.create(0)
    segments.create(SIZE)
    segments.write(b"abc", 5)
    segments.write(bytearray(b"xyz"), SIZE)
    assert segments.read(4, 4) == b"\0abc"
    assert segments.read_cached(3, SIZE) == b"xyz"
    assert segments.read(SIZE, 97) == bytes(3)  # ends with its file
    segments.close()


def test_load_finds_what_was_made(disk, root):
    segments = row(disk, root)
    segments.create(SIZE)
    segments.create(2 * SIZE)
    segments.write(b"x", 150)
    segments.close()
    again = row(disk, root)
    assert again.load() == []
    assert again.starts == [SIZE, 2 * SIZE]
    assert again.read(1, 150) == b"x"
    again.close()


def test_load_passes_over_other_names(disk, root):
    make_file(disk, f"{root}/notes.txt", 3)
    make_file(disk, f"{root}/123", SIZE)
    make_file(disk, f"{root}/{NAME_0}", SIZE)
    disk.make_dirs(f"{root}/{NAME_1}")  # Apache ignores folders as well
    segments = row(disk, root)
    segments.load()
    assert segments.starts == [0]
    assert row(disk, f"{root}/nothing").load() == []


def test_empty_last_files_are_dropped_c001(disk, root):
    make_file(disk, f"{root}/{NAME_0}", SIZE)
    make_file(disk, f"{root}/{NAME_1}", 0)
    make_file(disk, f"{root}/{NAME_2}", 0)
    segments = row(disk, root)
    notes = segments.load()
    assert segments.starts == [0]
    assert disk.list_dir(root) == [NAME_0]
    assert [note for note in notes if "empty" in note] == notes
    assert [NAME_2 in notes[0], NAME_1 in notes[1]] == [True, True]


@pytest.mark.parametrize(
    ("sizes", "bad"),
    [((SIZE, 50, SIZE), NAME_1), ((0, SIZE), NAME_0), ((SIZE, SIZE + 1), NAME_1), ((50,), NAME_0)],
)
def test_other_sizes_are_refused_with_path_and_both_sizes_c001(disk, root, sizes, bad):
    for number, size in enumerate(sizes):
        make_file(disk, f"{root}/{number * SIZE:020d}", size)
    with pytest.raises(ForeignFormat) as caught:
        row(disk, root).load()
    text = str(caught.value)
    assert f"{root}/{bad}" in text
    assert f"{dict(zip((NAME_0, NAME_1, NAME_2), sizes, strict=False))[bad]} bytes" in text
    assert f"say {SIZE}" in text


def test_a_name_that_is_no_multiple_of_the_size_is_refused(disk, root):
    make_file(disk, f"{root}/{50:020d}", SIZE)
    with pytest.raises(ForeignFormat, match=f"{50:020d} does not begin at a multiple of {SIZE}"):
        row(disk, root).load()


def test_short_files_get_their_size_back_where_they_can_be_made_again(disk, root):
    make_file(disk, f"{root}/{NAME_0}", 30)
    make_file(disk, f"{root}/{NAME_1}", SIZE)
    with pytest.raises(ForeignFormat, match=f"truncate -s {SIZE}"):
        row(disk, root).load()
    segments = row(disk, root)
    (note,) = segments.load(mend=True)
    assert "30 bytes" in note
    assert disk.size(f"{root}/{NAME_0}") == SIZE
    make_file(disk, f"{root}/{NAME_2}", SIZE + 1)
    with pytest.raises(ForeignFormat):
        row(disk, root).load(mend=True)


@pytest.mark.parametrize("kind", ["truncate", "sync"])
def test_a_new_file_that_cannot_be_made_durable_leaves_nothing_behind(kind):
    """Found by the crash sweep: after a failed sync the size of a file that stays is in doubt for ever."""
    disk = MemoryDisk()
    segments = row(disk, "/r")
    segments.create(0)
    disk.fail_when(lambda operation: operation.kind == kind, errno.ENOSPC)
    with pytest.raises(OSError):
        segments.create(SIZE, durable=True)
    disk.heal()
    assert disk.list_dir("/r") == [NAME_0]
    segments.create(SIZE, durable=True)
    segments.write(b"x", SIZE)
    segments.sync_call(0, 2 * SIZE)()
    disk.crash(1, keep="none")
    assert disk.size(f"/r/{NAME_1}") == SIZE


def test_a_hole_is_told(disk, root):
    make_file(disk, f"{root}/{NAME_0}", SIZE)
    make_file(disk, f"{root}/{NAME_2}", SIZE)
    segments = row(disk, root)
    (note,) = segments.load()
    assert f"bytes {SIZE} to {2 * SIZE} are missing" in note
    assert not segments.has(SIZE)


def test_cut_removes_later_files_and_zeroes_the_rest(disk, root):
    segments = row(disk, root)
    for start in (0, SIZE, 2 * SIZE):
        segments.create(start)
        segments.write(b"x" * SIZE, start)
    removed = segments.cut(150)
    assert removed == [f"{root}/{NAME_2}"]
    assert segments.read(SIZE, SIZE) == b"x" * 50 + bytes(50)
    assert disk.size(f"{root}/{NAME_1}") == SIZE
    assert segments.cut(1000) == []
    assert segments.cut(SIZE) == [f"{root}/{NAME_1}"]
    assert segments.cut(0) == []
    assert segments.starts == [0]  # the last file stays: its name says where to go on
    assert segments.read(SIZE, 0) == bytes(SIZE)
    segments.close()


def test_detach_forgets_a_file_and_drop_removes_it(disk, root):
    segments = row(disk, root)
    for start in (0, SIZE, 2 * SIZE):
        segments.create(start)
    path = segments.detach(0)
    assert path == f"{root}/{NAME_0}"
    assert disk.exists(path)
    assert not segments.has(0)
    segments.drop_segment(SIZE)
    assert not disk.exists(f"{root}/{NAME_1}")
    segments.drop_all()
    assert segments.empty
    assert disk.list_dir(root) == [NAME_0]


def test_creating_over_a_prepared_file_keeps_it(disk, root):
    disk.make_dirs(root)
    make_segment_file(disk, f"{root}/{NAME_0}", SIZE, durable=True)
    segments = row(disk, root)
    segments.create(0)
    assert disk.size(f"{root}/{NAME_0}") == SIZE
    segments.close()


def test_the_pool_closes_files_that_were_not_used_for_long(disk, root):
    pool = FilePool(disk, limit=2)
    segments = row(disk, root, pool=pool)
    for start in (0, SIZE, 2 * SIZE):
        segments.create(start)
    first = segments.file(0)
    segments.file(SIZE)
    assert segments.file(0) is first
    segments.file(2 * SIZE)  # closes SIZE, used longest ago
    assert segments.file(0) is first
    segments.file(SIZE)
    segments.file(2 * SIZE)
    with pytest.raises(OSError) as caught:
        first.read(1, 0)
    assert caught.value.errno == errno.EBADF
    segments.write(b"a", 0)
    assert segments.read(1, 0) == b"a"
    pool.close()


@pytest.mark.parametrize(
    ("soft", "share", "limit"),
    [
        (1024, 4, 256),
        (1024, 16, 64),
        (100, 4, 25),
        (64, 16, 8),
        (1 << 20, 4, 4096),
        (resource.RLIM_INFINITY, 4, 4096),
    ],
)
def test_pools_leave_descriptors_for_connections(monkeypatch, soft, share, limit):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert pool_limit(share) == limit


def test_cold_data_is_warmed_by_a_call_of_its_own():
    disk = MemoryDisk()
    segments = row(disk, "/row")
    segments.create(0)
    segments.write(b"abc", 0)
    disk.cold = True
    with pytest.raises(ColdData) as caught:
        segments.read_cached(3, 0)
    segments.close()
    assert caught.value.warm() == b"abc"  # does not depend on the pool
    segments.drop_all()
    assert caught.value.warm() == b""  # expired meanwhile
    tries = []

    def call() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ColdData(lambda: tries.append(0))
        return "warm"

    assert warmed(call) == "warm"
    assert tries == [1, 0, 1]


def test_sync_call_makes_bytes_and_names_durable():
    for seed in range(20):
        disk = MemoryDisk()
        segments = row(disk, "/row")
        for start in (0, SIZE, 2 * SIZE):
            segments.create(start)
            segments.write(b"x" * SIZE, start)
        segments.sync_call(50, 250)()
        disk.crash(seed, keep="none")
        again = row(disk, "/row")
        assert again.load() == []
        assert again.read(SIZE, 2 * SIZE) == b"x" * SIZE
        assert again.read(SIZE, 0) == b"x" * SIZE


def test_sync_call_leaves_other_segments_alone_and_syncs_names_once():
    disk = MemoryDisk()
    segments = row(disk, "/row")
    for start in (0, SIZE, 2 * SIZE):
        segments.create(start)
    segments.sync_call(SIZE, SIZE + 1)()
    segments.sync_call(SIZE, SIZE + 1)()
    operations = [(o.kind, o.path) for o in disk.operations if o.kind in ("sync", "sync_dir")]
    assert operations == [
        ("sync", f"/row/{NAME_1}"),
        ("sync_dir", "/row"),
        ("sync", f"/row/{NAME_1}"),
    ]
    segments.drop_segment(0)
    segments.sync_call(SIZE, SIZE + 1)()
    assert disk.operations[-1].kind == "sync_dir"  # or the file could come back


def test_names_stay_unsynced_after_a_failed_sync_and_expired_files_do_not_matter():
    disk = MemoryDisk()
    segments = row(disk, "/row")
    segments.create(0)
    segments.create(SIZE)
    disk.fail_when(lambda operation: operation.kind == "sync_dir")
    with pytest.raises(OSError):
        segments.sync_call(0, 2 * SIZE)()
    disk.heal()
    call = segments.sync_call(0, 2 * SIZE)
    segments.drop_segment(0)
    call()
    assert disk.operations[-1].kind == "sync_dir"


def test_a_file_that_cannot_be_made_is_not_known():
    disk = MemoryDisk()
    segments = row(disk, "/row")
    segments.create(0)
    disk.fail_when(lambda operation: operation.kind == "truncate", errno.ENOSPC)
    with pytest.raises(OSError):
        segments.create(SIZE)
    assert segments.starts == [0]
    disk.heal()
    segments.create(SIZE)
    assert disk.size(f"/row/{NAME_1}") == SIZE


@given(
    st.lists(st.integers(0, 3), unique=True, min_size=1),
    st.lists(st.tuples(st.integers(0, 399), st.binary(min_size=1, max_size=40)), max_size=12),
    st.integers(0, 400),
)
def test_any_writes_and_a_cut_read_back(numbers, writes, cut):
    disk = MemoryDisk()
    segments = row(disk, "/row")
    numbers = range(min(numbers), max(numbers) + 1)
    for number in numbers:
        segments.create(number * SIZE)
    model = {start: bytearray(SIZE) for start in segments.starts}
    for offset, data in writes:
        start = offset - offset % SIZE
        if start in model:
            data = data[: start + SIZE - offset]
            segments.write(data, offset)
            model[start][offset - start : offset - start + len(data)] = data
    segments.cut(cut)
    for start in segments.starts:
        kept = max(0, min(SIZE, cut - start))
        expected = bytes(model[start][:kept]) + bytes(SIZE - kept)
        assert segments.read(SIZE, start) == expected
    left = [s for s in model if s < cut] or [min(model)]
    assert segments.starts == left


def test_a_pool_gives_back_files_when_descriptors_run_out(tmp_path):
    """EMFILE: whatever else took the descriptors, the store goes on with fewer open files."""

    class Scarce(RealDisk):
        most = 6

        def open(self, path, *, create=False, readonly=False):
            if len(live) >= self.most:
                raise OSError(errno.EMFILE, "Too many open files", path)
            file = super().open(path, create=create, readonly=readonly)
            live.add(path)
            closing = file.close
            file.close = lambda: (live.discard(path), closing())
            return file

    live = set()
    disk = Scarce()
    paths = [str(tmp_path / str(n)) for n in range(9)]
    for path in paths:
        disk.open(path, create=True).close()
    pool = FilePool(disk, limit=100)
    for path in paths:
        assert pool.get(path).path == path
    assert len(live) <= Scarce.most
    pool.close()
    assert live == set()
    live.update("abcdef")
    with pytest.raises(OSError, match="Too many"):
        pool.get(paths[0])
