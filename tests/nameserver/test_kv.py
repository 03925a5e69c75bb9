"""Key-value settings, and their file under power cuts, damage and a full disk."""

import errno

import pytest

from trio_mq.errors import BodyError
from trio_mq.nameserver.kv import KVConfig, KVFile, decode
from trio_mq.testing.disk import MemoryDisk, PowerCut

PATH = "/store/namesrv/kvConfig.json"
#: As Apache's name server writes it.
APACHE_TEXT = b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"b-a:4;b-b:4"},"NS":{"k":"v"}}}'


def put_file(disk, path, data):
    disk.make_dirs("/store/namesrv")
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write(data, 0)
    file.sync()
    disk.sync_dir("/store/namesrv")
    disk.sync_dir("/store")
    disk.sync_dir("/")


def read_file(disk, path):
    file = disk.open(path, readonly=True)
    return file.read(file.size(), 0)


def test_values_are_kept_by_namespace():
    kv = KVConfig()
    kv.put("NS", "k", "v")
    kv.put("NS", "k", "w")
    kv.put("OTHER", "k", "x")
    assert (kv.get("NS", "k"), kv.get("OTHER", "k"), kv.get("NS", "z")) == ("w", "x", None)
    assert kv.namespace("NS") == {"k": "w"}
    assert kv.namespace("NONE") is None


def test_an_emptied_namespace_counts_as_unknown():
    kv = KVConfig()
    kv.put("NS", "k", "v")
    assert kv.delete("NS", "k")
    assert not kv.delete("NS", "k")
    assert kv.namespace("NS") is None


def test_every_change_moves_the_version():
    kv = KVConfig()
    versions = [kv.version]
    for change in (lambda: kv.put("N", "k", "v"), lambda: kv.delete("N", "k")):
        change()
        versions.append(kv.version)
    kv.delete("N", "k")
    assert versions == [0, 1, 2]
    assert kv.version == 2


def test_file_of_apache_is_read_and_written_in_its_form():
    tables = decode(APACHE_TEXT)
    assert tables["ORDER_TOPIC_CONFIG"] == {"T": "b-a:4;b-b:4"}
    assert decode(KVConfig(tables).encode()) == tables
    assert KVConfig({"NS": {"k": "v"}}).encode() == b'{"configTable":{"NS":{"k":"v"}}}'
    assert decode(b"{}") == {}


@pytest.mark.parametrize(
    "data", [b"[]", b'{"configTable":[]}', b'{"configTable":{"NS":"v"}}', b'{"configTable"', b"7"]
)
def test_other_content_is_refused(data):
    with pytest.raises(BodyError):
        decode(data)


def test_saved_settings_come_back():
    disk = MemoryDisk()
    disk.make_dirs("/store")
    file = KVFile(disk, PATH)
    assert file.load() == KVConfig()
    file.save(APACHE_TEXT)
    assert file.load().tables == decode(APACHE_TEXT)
    file.save(KVConfig({"NS": {"k": "2"}}).encode())
    assert file.load().tables == {"NS": {"k": "2"}}
    assert read_file(disk, PATH + ".bak") == APACHE_TEXT


def test_shorter_content_leaves_nothing_of_the_longer():
    disk = MemoryDisk()
    put_file(disk, PATH + ".tmp", b"x" * 1000)
    KVFile(disk, PATH).save(b"{}")
    assert read_file(disk, PATH) == b"{}"


@pytest.mark.parametrize("reorder", [False, True])
@pytest.mark.parametrize("existing", [False, True])
def test_c041_power_cut_at_any_operation_leaves_the_old_or_the_new_settings(existing, reorder):
    old = {"NS": {"k": "old"}} if existing else {}
    new = {"NS": {"k": "new", "more": "x" * 2000}}
    for operation in range(1, 40):
        for seed in range(4):
            disk = MemoryDisk()
            disk.make_dirs("/store")
            disk.sync_dir("/")
            if existing:
                put_file(disk, PATH, KVConfig(old).encode())
            disk.kill_at(operation)
            try:
                KVFile(disk, PATH).save(KVConfig(new).encode())
                done = True
            except PowerCut:
                done = False
            disk.crash(seed, reorder_names=reorder)
            found = KVFile(disk, PATH).load().tables
            assert found == new if done else found in (old, new), f"operation {operation}"
        if done:
            return
    pytest.fail("the save has more operations than this test looks at")


def test_c041_damaged_file_is_kept_aside_and_the_backup_is_used(caplog):
    disk = MemoryDisk()
    put_file(disk, PATH + ".bak", APACHE_TEXT)
    put_file(disk, PATH, APACHE_TEXT[:20])
    file = KVFile(disk, PATH)
    assert file.load().tables == decode(APACHE_TEXT)
    assert read_file(disk, PATH + ".damaged-1") == APACHE_TEXT[:20]
    assert f"{PATH} is damaged" in caplog.text
    assert ".damaged-1" in caplog.text
    file.save(b"{}")
    put_file(disk, PATH, b"\0" * 50)
    file.load()
    assert read_file(disk, PATH + ".damaged-2") == b"\0" * 50


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0"])
def test_c041_empty_file_is_damage_and_not_an_empty_table(data, caplog):
    disk = MemoryDisk()
    put_file(disk, PATH, data)
    assert KVFile(disk, PATH).load() == KVConfig()
    assert "the file is empty" in caplog.text


def test_full_disk_keeps_the_old_file():
    disk = MemoryDisk()
    put_file(disk, PATH, APACHE_TEXT)
    disk.fail_when(lambda operation: operation.kind == "write", errno.ENOSPC)
    with pytest.raises(OSError):
        KVFile(disk, PATH).save(b"{}")
    assert KVFile(disk, PATH).load().tables == decode(APACHE_TEXT)
