"""Ids of clients and messages: no two are the same, whatever forks."""

import os
import re

from trio_mq.client import identity


def test_every_client_has_its_own_id():
    found = {identity.client_id(now_ms=1) for _ in range(1000)}
    assert len(found) == 1000
    assert all(re.fullmatch(rf"[^@]+@{os.getpid()}#1\d{{6,}}", one) for one in found)


def test_a_named_client_has_the_same_id_after_a_restart():
    assert identity.client_id("mine", now_ms=1) == identity.client_id("mine", now_ms=2)
    assert identity.client_id("mine", now_ms=1) == f"{identity.local_ip()}@mine"
    assert identity.client_id("mine", "unit", now_ms=1).endswith("@mine@unit")


def test_message_ids_rise_and_differ():
    found = [identity.unique_id(1_700_000_000_000 + number // 10) for number in range(1000)]
    assert len(set(found)) == 1000
    assert all(re.fullmatch("[0-9A-F]{32}", one) for one in found)


def from_a_fork(make):
    """What a forked process makes."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(into, make().encode())
        finally:
            os._exit(0)
    os.close(into)
    with open(out, "rb") as text:
        found = text.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return found


def test_forked_processes_make_ids_of_their_own():
    """A server that forks its workers after the first send: all of them would count on from the same place."""
    now_ms = 1_700_000_000_000
    identity.unique_id(now_ms)
    found = [from_a_fork(lambda: identity.unique_id(now_ms)) for _ in range(3)]
    found += [identity.unique_id(now_ms), identity.unique_id(now_ms)]
    assert len(set(found)) == 5
    clients = [from_a_fork(lambda: identity.client_id(now_ms=now_ms)) for _ in range(3)]
    assert len({*clients, identity.client_id(now_ms=now_ms)}) == 4
