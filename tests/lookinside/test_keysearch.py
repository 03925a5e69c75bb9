"""Index files read only: headers, faults, and chains that are followed with care."""

from __future__ import annotations

from tests.recovery.stores import World
from trio_mq.lookinside.keysearch import open_index
from trio_mq.protocol.layout import index_entry_position, index_key_hash

from .support import view_of


async def test_files_come_in_the_order_of_their_records(world: World) -> None:
    offsets = await world.filled(300)
    with view_of(world) as view:
        files = open_index(view)
        assert len(files) == 2
        assert files[0].header.end_log_offset <= files[1].header.begin_log_offset
        key_hash = index_key_hash("T#k250")
        assert offsets[250] in [hit for file in files for hit in file.search(key_hash)]
        for file in files:
            assert not file.fault
            assert file.entry(file.count).log_offset == file.header.end_log_offset
            file.close()


async def test_files_that_cannot_be_read_say_why(memory_world: World) -> None:
    await memory_world.filled(300)
    first, second = memory_world.disk.list_dir(memory_world.path("index"))
    memory_world.resize(memory_world.path(f"index/{first}"), 20)
    memory_world.write(memory_world.path(f"index/{second}"), b"\x7f", 36)
    memory_world.write(memory_world.path("index/notes"), b"not an index")
    with view_of(memory_world) as view:
        files = open_index(view)
        faults = {file.name: file.fault for file in files}
        assert faults[first] == "has 20 bytes instead of 8240"
        assert "has room for 399" in faults[second]
        assert [list(file.search(7)) for file in files] == [[], []]
        for file in files:
            file.close()


async def test_a_chain_that_leads_in_a_circle_ends(memory_world: World) -> None:
    await memory_world.filled(60)
    (name,) = memory_world.disk.list_dir(memory_world.path("index"))
    path = memory_world.path(f"index/{name}")
    for number in range(1, 121):
        at = index_entry_position(number, 50) + 16
        memory_world.write(path, number.to_bytes(4, "big"), at)
    with view_of(memory_world) as view:
        (file,) = open_index(view)
        hits = list(file.search(index_key_hash("T#k59")))
        file.close()
    assert len(hits) <= 1
