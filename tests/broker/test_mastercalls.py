"""Tables that come in pages, and their versions; what a slave does not accept for an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.broker import mastercalls
from trio_mq.broker.mastercalls import Pages
from trio_mq.errors import BodyError
from trio_mq.protocol import jsondialect
from trio_mq.store.timercheck import TimerCheckpoint


def page(names, counter=1, table="table", **more):
    version = {"counter": counter, "stateVersion": 0, "timestamp": 5}
    return {table: {name: {} for name in names}, "dataVersion": version, **more}


def test_all_entries_are_asked_for_even_the_last_one_alone():
    """Apache's slaves stop one short of the total: with 2000k + 1 entries they never see the last one."""
    pages = Pages("table")
    names = [f"{i:04}" for i in range(2001)]
    assert not pages.take(2001, page(names[:2000]))
    assert pages.start == 2000
    assert pages.take(2001, page(names[2000:]))
    assert list(pages.found["table"]) == names


def test_a_peer_without_pages_says_no_total():
    pages = Pages("table", ("more",))
    assert pages.take(None, page(["a", "b"], more={"a": 1}))
    assert pages.found["more"] == {"a": 1}
    assert pages.found["dataVersion"]["counter"] == 1


def test_a_table_that_changes_on_the_way_is_asked_for_anew():
    pages = Pages("table", ("more",))
    assert not pages.take(4, page(["a", "b"], more={"a": 1}))
    assert not pages.take(4, page(["b", "c"], counter=2))
    assert (pages.start, pages.version) == (0, None)
    assert not pages.take(3, page(["b", "c"], counter=2))
    assert pages.take(3, page(["d"], counter=2))
    assert list(pages.found["table"]) == ["b", "c", "d"]
    assert pages.found["more"] == {}


def test_a_peer_that_has_less_than_it_says_does_not_make_us_ask_for_ever():
    pages = Pages("table")
    pages.take(3, page(["a"]))
    with pytest.raises(BodyError, match="3 entries, but it hands out only 1"):
        pages.take(3, page([]))


@pytest.mark.parametrize(
    "bad", [None, [], {}, {"table": []}, {"table": {}, "dataVersion": {"counter": "x"}}]
)
def test_what_is_no_page(bad):
    with pytest.raises(BodyError):
        Pages("table").take(1, bad)


@given(st.integers(0, 50), st.integers(1, 9))
def test_any_number_of_entries_in_pages_of_any_size(total, size):
    pages, names = Pages("table"), [f"{i:03}" for i in range(total)]
    while not pages.take(total, page(names[pages.start : pages.start + size])):
        pass
    assert list(pages.found["table"]) == names


def test_checkpoints_of_newer_and_older_peers():
    value = TimerCheckpoint(1, 2, 3, 4, 5, 6, 7)
    assert TimerCheckpoint.unpack(value.pack()) == value
    assert TimerCheckpoint.unpack(value.pack()[:32]) == TimerCheckpoint(1, 2, 3, 4)
    with pytest.raises(BodyError, match="56 bytes"):
        TimerCheckpoint.unpack(b"\0" * 31)


@given(
    st.recursive(
        st.integers(-(2**60), 2**60) | st.text() | st.booleans(),
        lambda inner: (
            st.dictionaries(st.text(), inner) | st.dictionaries(st.integers(0, 99), inner)
        ),
    )
)
def test_long_answers_are_read_as_short_ones_but_for_the_kind_of_their_keys(value):
    data = jsondialect.dumps(value)
    plain = jsondialect.loads(jsondialect.dumps(value, standard=True))
    assert mastercalls._loads_long(data) == plain
