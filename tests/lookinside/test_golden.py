"""Stores that Apache RocketMQ 5.4.0 wrote, looked into: each record as Apache's decoder saw it, and all of it sound."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from zlib import crc32

import pytest

from tests.golden_stores import NAMES, SEGMENT_SIZE, decoded, raw_records
from trio_mq.lookinside.listing import list_store
from trio_mq.lookinside.selection import Selection, select
from trio_mq.lookinside.shown import as_line, as_text
from trio_mq.lookinside.transfer import export
from trio_mq.lookinside.verify import StateLook, verify

from .support import chosen, golden_view

SAME = (
    *("topic", "queueId", "queueOffset", "flag", "sysFlag", "bornTimestamp", "storeTimestamp"),
    *("reconsumeTimes", "preparedTransactionOffset", "properties"),
)


@pytest.mark.parametrize("name", NAMES)
def test_cat_agrees_with_apaches_decoder(name: str, tmp_path: Path) -> None:
    told: list[str] = []
    with golden_view(name, tmp_path) as view:
        found = list(select(view, Selection(), told.append))
    rows = decoded(name)
    assert [raw.log_offset for raw in found] == [row["offset"] for row in rows]
    assert [(raw.log_offset, raw.data) for raw in found] == list(raw_records(name))
    for raw, row in zip(found, rows, strict=True):
        line = json.loads(as_line(raw.decoded(), decompress=True))
        assert {key: line[key] for key in SAME} == {key: row[key] for key in SAME}
        assert line["bornHost"].partition(":")[0] == row["bornHost"]
        assert f"/{line['storeHost']}" == row["storeHost"]
        assert (line["logOffset"], line["size"]) == (row["offset"], row["size"])
        body = base64.b64decode(line["bodyBase64"])
        assert (len(body), crc32(body)) == (row["plainBodyLength"], row["plainBodyCRC32"])
        assert row["topic"] in as_text(raw.decoded(), decompress=True)
    assert told == []


@pytest.mark.parametrize("name", NAMES)
def test_each_queue_gives_its_messages(name: str, tmp_path: Path) -> None:
    rows = decoded(name)
    topics = {row["topic"] for row in rows}
    with golden_view(name, tmp_path) as view:
        for topic in topics:
            expected = [row["offset"] for row in rows if row["topic"] == topic]
            assert [m.log_offset for m in chosen(view, topics=frozenset({topic}))] == expected


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_found_by_the_index(name: str, tmp_path: Path) -> None:
    rows = [row for row in decoded(name) if "UNIQ_KEY" in row["properties"]]
    told: list[str] = []
    with golden_view(name, tmp_path) as view:
        for row in rows[::10]:
            topic, key = row["topic"], row["properties"]["UNIQ_KEY"]
            found = chosen(view, told, topics=frozenset({topic}), key=key)
            assert row["offset"] in [m.log_offset for m in found]
    assert told == [], "no scan was needed"


@pytest.mark.parametrize("name", NAMES)
def test_apaches_stores_are_sound(name: str, tmp_path: Path) -> None:
    with golden_view(name, tmp_path) as view:
        report = verify(view, StateLook(), lambda *_: None)
    assert report.findings == []
    assert report.counted["records"] == len(decoded(name))
    assert report.counted["queues"] == 20
    assert report.counted["indexEntries"] > 1000


@pytest.mark.parametrize("name", NAMES)
def test_ls_tells_offsets_and_times(name: str, tmp_path: Path) -> None:
    rows = decoded(name)
    with golden_view(name, tmp_path) as view:
        found = list_store(view)
    assert (found.log_start, found.log_end) == (0, rows[-1]["offset"] + rows[-1]["size"])
    assert found.abort is (name == "crash")
    for file in found.log:
        inside = [r for r in rows if file.begin <= r["offset"] < file.begin + SEGMENT_SIZE]
        if inside:
            times = inside[0]["storeTimestamp"], inside[-1]["storeTimestamp"]
            assert (file.first_ms, file.last_ms) == times
    for queue in found.queues:
        inside = [r for r in rows if (r["topic"], r["queueId"]) == (queue.topic, queue.queue_id)]
        count = sum(int(r["properties"].get("INNER_NUM", 1)) for r in inside)
        assert (queue.min_offset, queue.max_offset) == (0, count), queue.topic
        assert queue.first_ms == inside[0]["storeTimestamp"]
        assert queue.last_ms == inside[-1]["storeTimestamp"]
    assert json.loads(json.dumps(found.as_dict()))["logEnd"] == found.log_end
    assert any("GoldBCQ/0" in line and "batch" in line for line in found.lines())


def test_an_export_has_all_messages_of_a_topic(tmp_path: Path) -> None:
    with golden_view("clean", tmp_path) as view:
        lines = [json.loads(line) for line in export(view, frozenset({"GoldNormal"}), print)]
    rows = [row for row in decoded("clean") if row["topic"] == "GoldNormal"]
    assert [line["properties"] for line in lines] == [row["properties"] for row in rows]
    assert {line["queueId"] for line in lines} == {0, 1, 2, 3}
