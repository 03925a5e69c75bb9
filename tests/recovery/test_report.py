"""What people and programs are told about a recovery."""

from __future__ import annotations

import json

from trio_mq.recovery.report import RecoveryReport


def test_the_line_of_a_clean_start():
    report = RecoveryReport(log_end=500, queues=3, records=1, walked_from=400, walk_reason="why")
    assert report.line() == (
        "recovered after a clean stop: log 0 to 500, 3 queues, 1 records read from 400 (why)"
    )


def test_the_line_of_a_careful_start_with_a_cut():
    report = RecoveryReport(
        clean=False, why_careful="the abort marker is there", cut_bytes=7, cut_reason="torn"
    )
    assert "carefully, since the abort marker is there" in report.line()
    assert report.line().endswith("; 7 bytes cut, torn")


def test_all_of_it_is_json():
    report = RecoveryReport(notes=["a note"], phase_s={"log": 0.123456})
    again = json.loads(json.dumps(report.as_dict()))
    assert again["notes"] == ["a note"]
    assert again["seconds"] == {"log": 0.1235}
    assert again["clean"] is True
