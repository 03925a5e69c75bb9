"""Cases from the field, as ``trio-mq recover --dry-run`` tells them."""

from __future__ import annotations

import pytest

from tests.recovery.stores import SEGMENT_BYTES, World
from trio_mq.protocol import properties
from trio_mq.protocol.layout import INDEX_HEADER, unpack_index_header
from trio_mq.recovery.inspection import Effect, Inspection, Kind, Verdict
from trio_mq.recovery.inspectiontext import lines

from .looking import inspect, state


def text(found: Inspection) -> str:
    """The report as people read it."""
    return "\n".join(lines(found))


def about(found: Inspection) -> list[str]:
    """What Apache's broker would do otherwise."""
    return [row.about for row in found.differences]


# -- the log -------------------------------------------------------------------------------------------------


async def test_c001_an_empty_last_file_is_listed(world: World):
    offsets = await world.filled(40, kill=True)
    following = world.segment(offsets[-1] + SEGMENT_BYTES)
    world.resize(following, 0)
    found = await inspect(world)
    assert found.verdict is Verdict.CHANGES
    name = following.removeprefix(f"{world.root}/")
    assert [c.kind for c in found.changes if c.path == name] == [Kind.REMOVED]
    assert f"{following} was empty and is dropped" in text(found)
    assert found.lost.records == 0


async def test_c001_a_short_file_in_the_middle_is_refused_with_both_sizes(world: World):
    await world.filled(60)
    short = world.segment(0)
    world.resize(short, 1000)
    found = await inspect(world)
    assert found.verdict is Verdict.REFUSED
    (why,) = found.refusals
    assert short in why
    assert "1000 bytes" in why
    assert "4096" in why
    assert found.picture.records < 60, "what can be read is told anyway"


async def test_c002_a_record_torn_inside_its_properties_is_named_and_apache_keeps_it(world: World):
    offsets = await world.filled(9, kill=True)
    last = offsets[-1]
    size = int.from_bytes(world.read_log(4, last), "big")
    props = properties.encode({"TAGS": "tag0", "KEYS": "k8"})
    world.write_log(bytes(len(props)), last + size - len(props))
    found = await inspect(world)
    assert found.verdict is Verdict.CHANGES
    assert found.report.log_end == last
    assert "properties" in found.report.cut_reason
    assert found.lost.records == 0, "no whole record is lost"
    assert "the record at the cut" in about(found)
    assert found.apache.end == last + size
    assert found.apache.taken == 1
    assert "properties of" in text(found)


async def test_c004_both_offsets_of_a_stale_record_are_told(world: World):
    offsets = await world.filled(60, kill=True)
    world.write(world.segment(SEGMENT_BYTES), world.read(world.segment(0))[:2000])
    behind = [offset for offset in offsets if offset >= SEGMENT_BYTES]
    found = await inspect(world)
    assert found.report.log_end == SEGMENT_BYTES
    assert f"record of offset 0 lies at offset {SEGMENT_BYTES}" in text(found)
    left = [offset for offset in behind if offset >= SEGMENT_BYTES + 2000]
    assert found.verdict is Verdict.LOSES
    assert found.lost.records in (len(left), len(left) - 1), "one may be hit in its middle"
    assert found.lost.topics == ["T"]
    assert found.apache.taken > 0
    assert found.apache.end > SEGMENT_BYTES
    assert "the record at the cut" in about(found)


@pytest.mark.parametrize("crashed", [True, False])
async def test_c010_the_range_of_a_missing_file_is_told(world: World, crashed: bool):
    offsets = await world.filled(100, kill=crashed)
    gone = SEGMENT_BYTES
    world.disk.remove(world.segment(gone))
    found = await inspect(world)
    (span,) = found.picture.missing
    assert (span.begin, span.end) == (gone, gone + SEGMENT_BYTES)
    assert f"bytes {gone} to {gone + SEGMENT_BYTES} are missing" in text(found)
    assert found.verdict is Verdict.CHANGES
    assert found.lost.records == 0
    lost = [offset for offset in offsets if gone <= offset < gone + SEGMENT_BYTES]
    assert sum(queue.unreadable for queue in found.unreadable) == len(lost)
    assert {(q.topic, q.queue_id) for q in found.unreadable} == {("T", 0), ("T", 1), ("T", 2)}


async def test_c011_damaged_though_cleanly_closed(world: World):
    offsets = await world.filled(30)
    world.flip(offsets[-1] + 88)
    found = await inspect(world)
    assert found.damaged_though_clean
    assert "damaged though cleanly closed" in text(found)
    assert found.report.log_end == offsets[-1]
    assert found.verdict is Verdict.CHANGES
    (change,) = found.queue_changes
    assert (change.topic, change.queue_id, change.before, change.after) == ("T", 2, 10, 9)
    assert "T/2 ends at 9 instead of 10" in text(found)
    (queue,) = found.unreadable
    assert (queue.topic, queue.queue_id, queue.unreadable) == ("T", 2, 1)
    assert "CRC" in found.report.cut_reason


@pytest.mark.parametrize("crashed", [True, False])
async def test_c016_a_negative_length_is_damage_and_no_size(world: World, crashed: bool):
    await world.filled(20, kill=crashed)
    end = (await world.restart()).log_end
    if not crashed:
        world.disk.remove(world.path("abort"))
    world.write_log((-448299468).to_bytes(4, "big", signed=True) + bytes(range(1, 200)), end)
    found = await inspect(world)
    assert found.verdict is Verdict.CHANGES
    assert found.damaged_though_clean is not crashed
    assert (found.report.log_end, found.report.cut_bytes) == (end, 203)
    assert [(span.begin, span.end) for span in found.picture.damaged] == [
        (end, end + SEGMENT_BYTES - end % SEGMENT_BYTES)
    ]


async def test_c020_a_damaged_record_in_the_middle_is_told_with_its_offset(world: World):
    offsets = await world.filled(100)
    world.flip(offsets[12] + 90)
    found = await inspect(world)
    (span,) = found.picture.damaged
    assert (span.begin, span.end) == (offsets[12], offsets[13])
    assert "body CRC is" in span.reason
    assert f"bytes {offsets[12]} to {offsets[13]} hold no whole record: body CRC is" in text(found)
    assert found.report.clean
    assert found.report.cut_bytes == 0
    assert found.verdict is Verdict.CHANGES, "it is not sound, though a start leaves it"
    assert "a start leaves as they are" in text(found)
    assert [(q.topic, q.queue_id, q.unreadable) for q in found.unreadable] == [("T", 0, 1)]


# -- queues and index ----------------------------------------------------------------------------------------


async def test_c025_a_hole_in_a_queue_file_is_told(world: World):
    await world.filled(140, queues=1)
    world.cut_entries("T", 0, 60, 20)
    world.crash()
    found = await inspect(world)
    assert found.verdict is Verdict.CHANGES
    (change,) = [c for c in found.changes if c.path.startswith("consumequeue/")]
    assert change.path == world.queue_file(first=50).removeprefix(f"{world.root}/")
    assert change.kind is Kind.CHANGED
    assert 0 < change.bytes <= 400
    (queue,) = found.queue_changes
    assert (queue.before, queue.after, queue.entries) == (140, 140, 20)
    assert "1 queue with 20 entries" in text(found)
    assert "hole" in text(found)
    assert found.lost.records == 0


@pytest.mark.parametrize("crashed", [True, False])
async def test_c034_an_index_of_another_store_is_told(world: World, crashed: bool):
    async with world.life() as store:
        for n in range(150):
            world.send(store, b"other %d" % n, "Other", tags="x", keys=f"k{n}")
    folder = world.path("index")
    kept = {name: world.read(f"{folder}/{name}") for name in world.disk.list_dir(folder)}
    for name in ("commitlog", "consumequeue", "index"):
        world.disk.remove_tree(world.path(name))
    world.clock.advance(1000)
    await world.filled(40)
    world.disk.remove_tree(folder)
    for name, data in kept.items():
        world.write(f"{folder}/{name}", data)
    if crashed:
        world.crash()
    found = await inspect(world)
    assert found.verdict is Verdict.CHANGES
    assert "index another log" in text(found)
    removed = {c.path for c in found.changes if c.kind is Kind.REMOVED}
    assert removed == {f"index/{name}" for name in kept}
    assert found.index.found == sum(f.keys for f in found.index_files) > 0
    assert found.index.left == 0
    assert found.index.added == 80, "a key and a tag of each record"


@pytest.mark.parametrize("damage", ["empty", "short", "count"])
async def test_c038_each_bad_index_file_is_named_with_its_fault(world: World, damage: str):
    await world.filled(450)
    folder = world.path("index")
    path = f"{folder}/{world.disk.list_dir(folder)[0]}"
    if damage == "count":
        header = unpack_index_header(world.read(path))
        world.write(path, INDEX_HEADER.pack(*header._replace(index_count=1_000_000)))
    else:
        world.resize(path, 0 if damage == "empty" else 10)
    found = await inspect(world)
    assert found.verdict is Verdict.CHANGES
    says = {"empty": "has 0 bytes", "short": "has 10 bytes", "count": "says more entries"}
    assert f"{path} {says[damage]}" in text(found)
    name = path.removeprefix(f"{world.root}/")
    (kind,) = [c.kind for c in found.changes if c.path == name]
    # The new file has the name of its time, which may be that of the old one.
    assert kind in (Kind.REMOVED, Kind.CHANGED)
    assert found.index.added > 0


# -- state files ---------------------------------------------------------------------------------------------

TOPICS = b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},"topicConfigTable":{}}'


async def test_c040_an_empty_file_with_a_good_backup_is_told(world: World):
    await world.filled(10)
    for name in ("topics.json", "subscriptionGroup.json"):
        world.write(world.path(f"config/{name}"), b"")
    world.write(world.path("config/topics.json.bak"), TOPICS)
    world.write(world.path("config/subscriptionGroup.json.bak"), b"{}")
    found = await inspect(world)
    for name in ("topics.json", "subscriptionGroup.json"):
        finding = state(found, name)
        assert (finding.file, finding.backup, finding.effect) == ("empty", "good", Effect.BACKUP)
        assert finding.repair == f"cp '{finding.path}.bak' '{finding.path}'"
        assert finding.path in text(found)
    assert found.verdict is Verdict.CHANGES
    written = {c.path for c in found.changes if c.counts}
    assert written == {"config/topics.json", "config/subscriptionGroup.json"}


async def test_c044_three_bad_files_at_once_are_told_with_loss_and_repair(world: World):
    await world.filled(10)
    for name in ("topics.json", "consumerOffset.json"):
        for suffix in ("", ".bak"):
            world.write(world.path(f"config/{name}{suffix}"), b"\0" * 180)
    world.resize(world.path("checkpoint"), 5000)
    found = await inspect(world)
    assert found.verdict is Verdict.REFUSED
    told = text(found)
    for name, lost in (
        ("config/topics.json", "the settings of all topics"),
        ("config/consumerOffset.json", "the progress of all consumer groups"),
    ):
        path = world.path(name)
        finding = state(found, name)
        assert finding.effect is Effect.REFUSED
        assert lost in finding.lost
        assert finding.repair == (f"mv '{path}' '{path}.lost' && mv '{path}.bak' '{path}.bak.lost'")
        assert finding.repair in told
        assert finding.lost in told
    path = world.path("checkpoint")
    finding = state(found, "checkpoint")
    assert (finding.effect, finding.repair) == (Effect.REFUSED, f"mv '{path}' '{path}.lost'")
    assert finding.repair in told
    assert len(found.refusals) == 3
    assert found.report.log_end > 0, "the rest is told as it would be after the repair"
    assert "after the repair commands above" in told


async def test_c044_the_repair_commands_are_enough(world: World):
    await world.filled(10)
    for suffix in ("", ".bak"):
        world.write(world.path(f"config/topics.json{suffix}"), b"not json")
    world.resize(world.path("checkpoint"), 5000)
    found = await inspect(world)
    for finding in found.state_files:
        for command in filter(None, finding.repair.split(" && ")):
            verb, old, new = command.replace("'", "").split()
            assert verb == "mv"
            world.disk.rename(old, new)
    again = await inspect(world)
    assert again.verdict is Verdict.SOUND
    assert again.refusals == ()
