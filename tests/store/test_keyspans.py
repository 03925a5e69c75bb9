"""Keys and tags found in bulk are those that are found one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.protocol import properties
from trio_mq.protocol.message import java_hash, tags_code_of
from trio_mq.store.keys import KeyHasher

np = pytest.importorskip("numpy")
from trio_mq.store.keyspans import LONGEST, find  # noqa: E402

NAMES = [
    b"TAGS",
    b"KEYS",
    b"UNIQ_KEY",
    b"XTAGS",
    b"TAG",
    b"TAGSX",
    b"A",
    b"",
    b"KEYS_OF",
    b"NIQ_KEY",
]
VALUES = st.one_of(
    st.sampled_from([b"", b"TagA", b"order-1", b"TAGS", b"x\x01y", b"polygenelubricants", b"T#a"]),
    st.text("abcXYZ-_09", max_size=40).map(str.encode),
)
TEXTS = st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=5).flatmap(
    lambda pairs: st.booleans().map(
        lambda closed: b"\x02".join(n + b"\x01" + v for n, v in pairs) + b"\x02" * closed
    )
)


def by_one(topics: list[str], texts: list[bytes]) -> tuple[list[int], list[int], list[int]]:
    """Tags codes, index hashes and counts, one record after the other."""
    hasher = KeyHasher()
    keys = [hasher.keys(topic, text) for topic, text in zip(topics, texts, strict=True)]
    tags = [tags_code_of(properties.get(text, b"TAGS") or b"") for text in texts]
    return tags, [key for some in keys for key in some], [len(some) for some in keys]


def in_bulk(topics: list[str], texts: list[bytes]) -> tuple[list[int], list[int], list[int]] | None:
    spans = find(texts)
    if spans is None:
        return None
    of_topics = np.array([java_hash(t + "#") & 0xFFFF_FFFF for t in topics], np.uint32)
    hashes, counts = spans.index_hashes(of_topics)
    return spans.tags_codes().tolist(), hashes.tolist(), counts.tolist()


@given(texts=st.lists(TEXTS, min_size=1, max_size=30), topic=st.text(min_size=1, max_size=20))
def test_in_bulk_as_one_by_one(texts, topic):
    topics = [topic if n % 2 else "T" for n in range(len(texts))]
    assert in_bulk(topics, texts) == by_one(topics, texts)
    tags = find(texts, tags_only=True)
    assert tags is not None
    assert tags.tags_codes().tolist() == by_one(topics, texts)[0]


@pytest.mark.parametrize(
    "text",
    [b"KEYS\x01a b\x02", b"TAGS\x01\xc3\xa4\x02", b"UNIQ_KEY\x01" + b"k" * (LONGEST + 1) + b"\x02"],
)
def test_what_is_unusual_is_left_to_others(text: bytes):
    assert find([b"TAGS\x01a\x02", text]) is None


def test_a_space_elsewhere_is_nothing_unusual():
    assert find([b"A\x01b c\x02TAGS\x01a b\x02KEYS\x01k\x02"]) is not None


def test_texts_without_anything():
    assert in_bulk(["T", "T"], [b"", b""]) == ([0, 0], [], [0, 0])
    assert in_bulk(["T"], [b"TAGS"]) == ([0], [], [0])
