"""The offsets file of broadcasting consumers: Java's format, damage, replacement."""

from __future__ import annotations

import errno
import json
import logging
import os

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.client import localoffsets
from trio_mq.client.localoffsets import (
    LocalOffsets,
    decode_offsets,
    encode_offsets,
    offsets_file,
    read_offsets,
    write_offsets,
)
from trio_mq.protocol.bodies import MessageQueue

Q0, Q1 = MessageQueue("T", "b1", 0), MessageQueue("T", "b1", 1)
# As Apache 5.4 writes it (OffsetSerializeWrapper.toJson(true)).
JAVAS = b"""{
	"offsetTable":{{
			"brokerName":"b1",
			"queueId":1,
			"topic":"T"
		}:7,{
			"brokerName":"b1",
			"queueId":0,
			"topic":"T"
		}:12
	}
}"""


def in_loop(function, *args):
    async def call():
        return function(*args)

    return call()


@pytest.fixture
def path(tmp_path):
    return offsets_file(tmp_path, "10.0.0.1@DEFAULT", "G")


def backup_of(path):
    return path.with_name("offsets.json.bak")


def test_javas_file_is_read():
    assert decode_offsets(JAVAS) == {Q0: 12, Q1: 7}


QUEUES = st.builds(MessageQueue, st.text(), st.text(), st.integers(0, 9))


@given(st.dictionaries(QUEUES, st.integers(0, 2**62)))
def test_what_is_written_is_read(offsets):
    assert decode_offsets(encode_offsets(offsets)) == offsets


def test_the_place_is_that_of_java(monkeypatch, tmp_path):
    monkeypatch.delenv(localoffsets.DIRECTORY_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ".rocketmq_offsets" / "10.0.0.1@DEFAULT" / "G" / "offsets.json"
    assert offsets_file(None, "10.0.0.1@DEFAULT", "G") == expected
    monkeypatch.setenv(localoffsets.DIRECTORY_VARIABLE, str(tmp_path / "elsewhere"))
    assert offsets_file(None, "i", "G") == tmp_path / "elsewhere" / "i" / "G" / "offsets.json"
    assert offsets_file(tmp_path / "given", "i", "G").parent.parent.parent == tmp_path / "given"


def test_nothing_there_is_no_offset(path):
    assert read_offsets(path) == {}


def test_the_file_before_becomes_the_backup(path):
    write_offsets(path, {Q0: 1})
    assert not backup_of(path).exists()
    write_offsets(path, {Q0: 2})
    assert read_offsets(path) == {Q0: 2}
    assert decode_offsets(backup_of(path).read_bytes()) == {Q0: 1}
    assert sorted(os.listdir(path.parent)) == ["offsets.json", "offsets.json.bak"]


def test_a_stop_between_the_two_renames_costs_one_round(path):
    write_offsets(path, {Q0: 1})
    path.replace(backup_of(path))
    assert read_offsets(path) == {Q0: 1}


def test_c121_a_damaged_file_is_kept_aside_and_its_backup_counts(path, caplog):
    write_offsets(path, {Q0: 1})
    write_offsets(path, {Q0: 2})
    path.write_bytes(b"\0\0garbage")
    with caplog.at_level(logging.WARNING):
        assert read_offsets(path) == {Q0: 1}
    assert path.with_name("offsets.json.damaged").read_bytes() == b"\0\0garbage"
    assert not path.exists()
    assert "it is kept as offsets.json.damaged" in caplog.text


def test_c121_both_damaged_is_no_offset_and_no_error(path, caplog):
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    backup_of(path).write_bytes(json.dumps({"offsetTable": [1]}).encode())
    with caplog.at_level(logging.WARNING):
        assert read_offsets(path) == {}
    assert len(caplog.records) == 2
    assert set(os.listdir(path.parent)) == {
        "offsets.json.damaged",
        "offsets.json.bak.damaged",
    }


def test_an_empty_file_is_passed_over(path):
    write_offsets(path, {Q0: 1})
    write_offsets(path, {Q0: 2})
    path.write_bytes(b"")
    assert read_offsets(path) == {Q0: 1}


def test_a_file_that_cannot_be_read_is_told(path, caplog):
    path.mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        assert read_offsets(path) == {}
    assert "cannot be read" in caplog.text


async def test_positions_are_kept_and_the_file_is_written_when_they_are_new(path):
    store = await LocalOffsets.load(path, in_loop)
    assert await store.read(Q0) is None
    assert await store.write({Q0: 5}, wait=False) == {}
    assert await store.write({Q1: 6}, wait=False) == {}
    assert await store.read(Q0) == 5
    assert read_offsets(path) == {Q0: 5, Q1: 6}
    before = path.stat().st_mtime_ns
    await store.write({Q0: 5}, wait=True)
    assert path.stat().st_mtime_ns == before


async def test_a_queue_that_is_not_ours_for_a_while_keeps_its_offset(path):
    write_offsets(path, {Q0: 5, Q1: 6})
    store = await LocalOffsets.load(path, in_loop)
    await store.write({Q0: 9}, wait=False)
    assert read_offsets(path) == {Q0: 9, Q1: 6}


async def test_a_full_disk_is_told_and_tried_again(path):
    failing = [True]

    async def in_thread(function, *args):
        if function is write_offsets and failing[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return function(*args)

    store = await LocalOffsets.load(path, in_thread)
    failures = await store.write({Q0: 5}, wait=False)
    assert "No space left on device" in str(failures[Q0])
    assert str(path) in str(failures[Q0])
    failing[0] = False
    assert await store.write({}, wait=False) == {}
    assert read_offsets(path) == {Q0: 5}


async def test_files_are_not_touched_in_the_event_loop(path, monkeypatch):
    seen = []

    def read(_):
        seen.append(trio.lowlevel.in_trio_run())
        return {}

    monkeypatch.setattr(localoffsets, "read_offsets", read)
    await LocalOffsets.load(path)
    assert seen == [False]
