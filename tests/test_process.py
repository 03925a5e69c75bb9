"""What is found out about this very process."""

from __future__ import annotations

import resource
import time

import pytest

from trio_mq import process


def test_the_start_is_before_now_and_not_long_ago():
    assert 0 <= time.perf_counter() - process.start_s() <= 60


def test_where_the_system_does_not_tell_it_is_now(monkeypatch):
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    before = time.perf_counter()
    assert before <= process.start_s() <= time.perf_counter()


@pytest.mark.parametrize("refused", [False, True])
def test_the_soft_limit_becomes_the_hard_one(monkeypatch, refused):
    asked = []

    def set_limit(kind, limits):
        asked.append((kind, limits))
        if refused:
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 65536))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    process.raise_descriptor_limit()
    assert asked == [(resource.RLIMIT_NOFILE, (65536, 65536))]
