"""The whole system: starts that are refused, and parts of it that fail."""

from __future__ import annotations

import errno
import os
import socket

import pytest
import trio

from tests.broker.support import pull, send, texts
from tests.whole_system import (
    LIMIT_S,
    client,
    fails,
    parsed,
    put,
    running,
    settings_of,
)
from trio_mq import system
from trio_mq.config import Address
from trio_mq.errors import (
    AddressInUse,
    ConfigError,
    ForeignFormat,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
)
from trio_mq.store.store import Store
from trio_mq.testing.disk import MemoryDisk

# -- starts that fail


async def test_a_port_in_use_is_told_before_anything_is_touched():
    disk = MemoryDisk()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for settings, option in (
            (settings_of({"listen_port": port, "fast_port": False}), "--listen"),
            (settings_of({"listen_port": port + 2}), "--no-fast-port"),
            (settings_of(listen=Address("127.0.0.1", port)), "--nameserver-listen"),
        ):
            error = await fails(AddressInUse, disk, settings)
            assert option in str(error)
            assert f":{port}" in str(error)
            assert error.exit_code == 31
    assert disk.operations == []


async def test_c013_a_second_start_names_the_first_and_changes_nothing():
    disk = MemoryDisk()
    async with running(disk) as made:
        await trio.sleep(0.1)
        port = parsed(made.broker).port
        before = [op for op in disk.operations if op.kind != "sync"]
        began = trio.current_time()
        for settings in (
            settings_of(),
            settings_of({"listen_port": port, "fast_port": False}),  # the very same command
        ):
            error = await fails(StoreLocked, disk, settings)
            assert error.exit_code == 21
            assert f"process {os.getpid()}" in str(error)
        assert trio.current_time() - began < 1
        assert [op for op in disk.operations if op.kind != "sync"] == before
        async with client(made.broker) as peer:
            assert (await peer.ask(send("T"))).code == 0
    assert not disk.exists("/store/abort")


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
async def test_c169_a_folder_that_cannot_be_made(code):
    disk = MemoryDisk()
    disk.fail_when(lambda op: op.kind == "make_dirs", code)
    error = await fails(ConfigError, disk)
    assert "/store" in str(error)
    assert os.strerror(code) in str(error)
    assert "--store" in str(error)


async def test_damage_ends_a_start_with_its_exit_code():
    disk = MemoryDisk()
    disk.make_dirs("/store/config")
    for name in ("topics.json", "topics.json.bak"):
        put(disk, f"/store/config/{name}", b"garbage")
    error = await fails(StoreDamaged, disk)
    assert error.exit_code == 22
    assert "topics.json" in str(error)
    assert "trio-mq recover --dry-run /store" in str(error)  # case C044
    assert not disk.exists("/store/abort")


async def test_c001_a_short_log_file_is_refused_with_the_way_to_see_more():
    """C001, C044: a log file of another size that is not the last one."""
    disk = MemoryDisk()
    disk.make_dirs("/store/commitlog")
    for start, size in ((0, 1000), (1 << 20, 1 << 20)):
        disk.open(f"/store/commitlog/{start:020d}", create=True).truncate(size)
    error = await fails(ForeignFormat, disk)
    for part in ("/store/commitlog/00000000000000000000", "1000", str(1 << 20)):
        assert part in str(error)
    assert "trio-mq recover --dry-run /store" in str(error)


async def test_a_host_name_that_nobody_knows():
    error = await fails(
        ConfigError, settings=settings_of({"advertise_host": "no-such-host.invalid"})
    )
    assert "no-such-host.invalid" in str(error)


# -- stages that fail


async def test_a_disk_that_fails_ends_the_process_and_leaves_the_marker(caplog):
    disk = MemoryDisk()

    async def lose_the_disk():
        async with running(disk) as made, client(made.broker) as peer:
            assert (await peer.ask(send("T"))).code == 0
            disk.fail_when(lambda op: op.kind == "sync" and "commitlog" in op.path, errno.EIO)
            await trio.sleep_forever()

    with trio.fail_after(LIMIT_S), pytest.raises(BaseExceptionGroup) as caught:
        await lose_the_disk()
    error = system._first_of(caught.value)
    assert type(error) is StoreError
    assert "commitlog" in str(error)
    assert "Input/output error" in str(error)
    assert disk.exists("/store/abort")
    disk.heal()
    async with running(disk) as again:
        assert not again.ready.recovery.clean
        async with client(again.broker) as peer:
            assert texts(await peer.ask(pull(0, "T"))) == [b"hello"]


async def test_tables_that_cannot_be_saved_do_not_keep_the_store_from_closing():
    disk = MemoryDisk()

    async def fill_the_disk():
        async with running(disk) as made, client(made.broker) as peer:
            await peer.ask(send("T"))
            disk.fail_when(lambda op: "/config/" in op.path, errno.ENOSPC)
            await peer.ask(pull(1, "T", sys_flag=5, commit_offset=1))

    with pytest.raises(BaseExceptionGroup) as caught:
        await fill_the_disk()
    error = system._first_of(caught.value)
    assert type(error) is StoreFull
    assert "cannot save /store/config/" in str(error)
    assert not disk.exists("/store/abort"), "the store itself was closed well"


async def test_a_subsystem_that_does_not_close_in_time(monkeypatch, caplog):
    monkeypatch.setattr(system, "STOP_LIMIT_S", 0.1)

    async def hang(self):
        await trio.sleep_forever()

    monkeypatch.setattr(system.Broker, "close", hang)
    disk = MemoryDisk()
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(disk):
            pass
    error = system._first_of(caught.value)
    assert type(error) is StoreError
    assert "the broker did not close within 0.1 s" in str(error)
    assert not disk.exists("/store/abort")


async def test_a_fault_of_ours_gets_out_as_it_is(monkeypatch):
    async def fault(self, **_):
        raise KeyError("ours")

    monkeypatch.setattr(Store, "run", fault)
    disk = MemoryDisk()
    await fails(KeyError, disk)
    assert disk.exists("/store/abort")


def test_the_error_that_explains_a_group():
    ours, other = StoreFull("full"), KeyError("k")
    group = BaseExceptionGroup("", [other, BaseExceptionGroup("", [OSError("x"), ours])])
    assert system._first_of(group) is ours
    assert system._first_of(BaseExceptionGroup("", [other, OSError("x")])) is other
    for code, kind in (
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EIO, StoreError),
    ):
        failed = OSError(code, os.strerror(code), "/store/file")
        error = system._first_of(BaseExceptionGroup("", [failed]))
        assert type(error) is kind
        assert "/store/file" in str(error)
        assert os.strerror(code) in str(error)
    assert "plain" in str(system._first_of(BaseExceptionGroup("", [OSError("plain")])))
