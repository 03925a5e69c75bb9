"""The manifest of a folder in the quarantine: its JSON, read back, and what is none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.recovery.manifest import KeptFile, Manifest, stamp

OFFSETS = st.integers(0, 2**63 - 1)
FILES = st.builds(KeptFile, st.text(max_size=30), OFFSETS, OFFSETS, OFFSETS)
MANIFESTS = st.builds(
    Manifest,
    offset=OFFSETS,
    length=OFFSETS,
    kept_length=OFFSETS,
    reason=st.text(),
    time_ms=st.integers(0, 4_000_000_000_000),
    segment_bytes=OFFSETS,
    files=st.lists(FILES, max_size=4).map(tuple),
)
ONE = Manifest(
    offset=4242,
    length=500,
    kept_length=400,
    reason="at offset 4242: the body's CRC differs",
    time_ms=1_700_000_000_012,
    segment_bytes=4096,
    files=(KeptFile(f"{4096:020d}", 4242, 4642, 400),),
)


def test_people_and_programs_can_read_it():
    value = json.loads(ONE.encode())
    assert value["time"] == "2023-11-14T22:13:20.012Z"
    assert value["files"] == [
        {"name": "00000000000000004096", "begin": 4242, "end": 4642, "data_bytes": 400}
    ]
    assert {name: value[name] for name in ("offset", "length", "kept_length", "time_ms")} == {
        "offset": 4242,
        "length": 500,
        "kept_length": 400,
        "time_ms": 1_700_000_000_012,
    }


@given(MANIFESTS)
def test_what_is_written_is_read_back(manifest: Manifest):
    assert Manifest.decode(manifest.encode()) == manifest


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b'{"offset": 1', ONE.encode()[:-20], b"\xff\xfe"]
)
def test_anything_else_is_refused(data: bytes):
    with pytest.raises(ValueError, match=r"."):
        Manifest.decode(data)


def test_a_folder_is_named_by_its_time_in_utc():
    assert stamp(1_700_000_000_012) == "20231114T221320012"
