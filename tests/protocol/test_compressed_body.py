"""The compressed registration, written here by hand as the peer's class does it."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.errors import BodyError
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import compressed

VERSION = json.dumps({"counter": 3, "stateVersion": 1, "timestamp": 1_700_000_000_000}).encode()


def piece(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def plain(*topics: bytes, servers: bytes = b"[]", mappings: list[bytes] | None = None) -> bytes:
    head = (
        piece(VERSION)
        + len(topics).to_bytes(4, "big")
        + b"".join(map(piece, topics))
        + piece(servers)
    )
    if mappings is None:
        return head
    return head + len(mappings).to_bytes(4, "big") + b"".join(map(piece, mappings))


def test_a_registration_of_a_new_broker() -> None:
    data = plain(
        b'T 4 8 6 SINGLE_TAG {"queue.type":"BatchCQ"}',
        b"U 1 1 4 MULTI_TAG",
        servers=b'["10.0.0.1:7"]',
        mappings=[b'{"topic":"T","bname":"b-a"}'],
    )
    found = bodies.decode_compressed(zlib.compress(data), 493)
    wrapper = found.topic_config_serialize_wrapper
    assert wrapper.data_version == bodies.DataVersion(3, 1, 1_700_000_000_000)
    assert wrapper.topic_config_table == {
        "T": bodies.TopicConfig("T", 4, 8, 6, "SINGLE_TAG", attributes={"queue.type": "BatchCQ"}),
        "U": bodies.TopicConfig("U", 1, 1, 4, "MULTI_TAG"),
    }
    assert wrapper.topic_queue_mapping_info_map == {"T": {"topic": "T", "bname": "b-a"}}
    assert found.filter_server_list == ("10.0.0.1:7",)


def test_a_registration_of_an_old_broker_has_no_mappings() -> None:
    data = zlib.compress(plain(b"T 4 8 6 SINGLE_TAG "))
    found = bodies.decode_compressed(data, 412)
    assert list(found.topic_config_serialize_wrapper.topic_config_table) == ["T"]
    with pytest.raises(BodyError, match="ends before its queue mappings"):
        bodies.decode_compressed(data, 413)


def test_the_plain_form_is_an_ordinary_body() -> None:
    body = bodies.RegisterBrokerBody(
        bodies.TopicConfigSerializeWrapper({"T": bodies.TopicConfig("T")}, bodies.DataVersion(1))
    )
    assert bodies.decode(bodies.RegisterBrokerBody, bodies.encode(body)) == body
    assert bodies.decode(bodies.RegisterBrokerBody, b"{}") == bodies.RegisterBrokerBody()


def test_every_truncation_is_an_error() -> None:
    whole = plain(b"T 4 8 6 SINGLE_TAG {}", mappings=[b'{"topic":"T"}'])
    for end in range(len(whole)):
        with pytest.raises(BodyError, match=r"RegisterBrokerBody|JSON"):
            bodies.decode_compressed(zlib.compress(whole[:end]), 493)
    stream = zlib.compress(whole)
    for end in range(len(stream)):
        with pytest.raises(BodyError, match="cut off"):
            bodies.decode_compressed(stream[:end], 493)


def test_an_inflated_body_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "MAX_INFLATED_BYTES", 1000)
    with pytest.raises(BodyError, match="more than 1000 bytes when inflated"):
        bodies.decode_compressed(zlib.compress(bytes(1001)), 493)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "ends before its data version"),
        (b"\xff\xff\xff\xff", "data version of -1 bytes, but 0 are left"),
        (piece(VERSION) + b"\x7f\xff\xff\xff", "number of topics is 2147483647"),
        (piece(VERSION) + b"\xff\xff\xff\xff", "number of topics is -1"),
        (plain(b"T 4 8 6"), "topic 'T 4 8 6' has no five fields"),
        (plain(b"T 4 x 6 SINGLE_TAG"), "topic 'T 4 x 6 SINGLE_TAG' has no five fields"),
        (plain(b"T 4 8 6 SINGLE_TAG []"), "attributes of topic 'T' are not an object"),
        (plain(b"T 4 8 6 SINGLE_TAG {"), "JSON, character 1"),
        (plain(servers=b"{}"), "filter servers are not a list"),
        (plain(mappings=[b"[]"]), "a queue mapping has no topic"),
    ],
)
def test_broken_registrations(data: bytes, problem: str) -> None:
    with pytest.raises(BodyError) as caught:
        bodies.decode_compressed(zlib.compress(data), 493)
    assert problem in str(caught.value)


def test_bytes_that_are_no_stream() -> None:
    with pytest.raises(BodyError, match="not a zlib stream"):
        bodies.decode_compressed(b"nothing", 493)


@given(st.binary(max_size=100), st.integers(0, 1000))
def test_any_bytes_are_a_body_or_a_body_error(noise: bytes, at: int) -> None:
    whole = plain(b"T 4 8 6 SINGLE_TAG {}", mappings=[b'{"topic":"T"}'])
    cut = at % len(whole)
    for data in (zlib.compress(noise), zlib.compress(whole[:cut] + noise + whole[cut:]), noise):
        try:
            found = bodies.decode_compressed(data, 493)
        except BodyError:
            continue
        assert isinstance(found, bodies.RegisterBrokerBody)
