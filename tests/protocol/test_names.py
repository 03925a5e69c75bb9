"""How our names become names on the wire."""

from __future__ import annotations

import attrs
import pytest

from trio_mq.protocol.names import camel, wire, wire_name


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("topic", "topic"),
        ("queue_id", "queueId"),
        ("body_crc32", "bodyCrc32"),
        ("max_msg_nums", "maxMsgNums"),
    ],
)
def test_camel(ours: str, theirs: str) -> None:
    assert camel(ours) == theirs


def test_a_field_may_give_its_own_name() -> None:
    @attrs.frozen
    class Sample:
        client_id: str = wire("clientID")
        queue_id: int = wire("qid", default=-1)
        plain_name: int = 0

    assert [wire_name(field) for field in attrs.fields(Sample)] == ["clientID", "qid", "plainName"]
    assert Sample("c") == Sample(client_id="c", queue_id=-1, plain_name=0)
