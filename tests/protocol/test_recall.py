"""Recall handles: there and back, and texts that are none."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.errors import BodyError
from trio_mq.protocol.recall import RecallHandle, parse_recall_handle, recall_handle

WORD = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=40)


@given(WORD, WORD, st.integers(0, 2**63 - 1), WORD)
def test_there_and_back(topic, broker, ms, key):
    text = recall_handle(topic, broker, ms, key).decode()
    assert parse_recall_handle(text) == RecallHandle(topic, broker, ms, key)
    assert parse_recall_handle(text.rstrip("=")) == RecallHandle(topic, broker, ms, key)


@pytest.mark.parametrize(
    "raw", ["", "v1", "v1 T b 5", "v2 T b 5 ID", "T b 5 ID v1"], ids=lambda raw: raw or "empty"
)
def test_other_texts_are_refused(raw):
    with pytest.raises(BodyError, match="is not of the form"):
        parse_recall_handle(base64.urlsafe_b64encode(raw.encode()).decode())


@pytest.mark.parametrize("text", ["*", "no handle", "abc\u00e9", "_____"])
def test_what_is_not_base64_is_refused(text):
    with pytest.raises(BodyError, match="recall handle"):
        parse_recall_handle(text)


def test_a_time_that_is_no_number_is_none():
    text = base64.urlsafe_b64encode(b"v1 T b soon ID").decode()
    assert parse_recall_handle(text).deliver_ms == -1
