"""What is held of one queue: order of settlements, positions, room."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.client.received import message_at
from trio_mq.client.processqueue import FlowLimits, ProcessQueue
from trio_mq.protocol.bodies import MessageQueue

QUEUE = MessageQueue("T", "b1", 3)


def filled(*offsets, next_offset=None, **limits):
    queue = ProcessQueue(QUEUE, offsets[0] if offsets else 0, FlowLimits(**limits))
    queue.put([message_at(offset) for offset in offsets])
    queue.next_offset = next_offset if next_offset is not None else max(offsets) + 1
    return queue


def take_all(queue):
    found = []
    while (message := queue.take()) is not None:
        found.append(message)
    return found


def test_the_position_is_the_lowest_offset_that_is_not_settled():
    queue = filled(10, 11, 12)
    first, second, third = take_all(queue)
    assert queue.position == 10
    assert queue.settle(second)
    assert queue.position == 10
    assert queue.settle(first)
    assert queue.position == 12
    assert queue.settle(third)
    assert queue.position == 13


def test_with_nothing_held_the_position_is_where_the_next_pull_reads():
    queue = ProcessQueue(QUEUE, 7)
    assert queue.position == 7
    queue.next_offset = 900  # all filtered by the broker
    assert queue.position == 900


def test_a_message_is_settled_once():
    queue = filled(1, 2)
    message = queue.take()
    assert queue.settle(message)
    assert not queue.settle(message)
    assert not queue.settle(message_at(2)), "another object with that offset is another delivery"
    assert queue.count == 1


def test_what_is_held_is_not_taken_twice():
    queue = filled(1, 2)
    queue.put([message_at(2), message_at(3)])
    assert [message.queue_offset for message in take_all(queue)] == [1, 2, 3]


def test_messages_that_are_put_back_come_first_and_keep_their_order():
    queue = filled(1, 2, 3, 4)
    first, second = queue.take(), queue.take()
    queue.put_back([first, second])
    assert [message.queue_offset for message in take_all(queue)] == [1, 2, 3, 4]
    assert first.taken_at_s == inf


def test_a_settled_message_is_not_put_back():
    queue = filled(1, 2)
    first, second = take_all(queue)
    queue.settle(first)
    queue.put_back([first, second])
    assert take_all(queue) == [second]


def test_nothing_is_handed_out_of_a_paused_or_dropped_queue():
    queue = filled(1, 2)
    queue.pause()
    assert queue.take() is None
    assert not queue.may_pull()
    queue.resume()
    assert queue.take().queue_offset == 1
    queue.drop()
    assert queue.take() is None
    assert queue.may_pull(), "its pull task has to see that it is over"


def test_flow_is_limited_by_messages():
    queue = filled(*range(4), messages=3)
    assert not queue.may_pull()
    queue.settle(queue.take())
    assert queue.may_pull()


def test_flow_is_limited_by_bytes():
    queue = filled(0, 1, bytes=2 * message_at(0).size_bytes - 1)
    assert not queue.may_pull()
    queue.settle(queue.take())
    assert queue.may_pull()


def test_flow_is_limited_by_the_span_of_offsets():
    queue = filled(0, 5, 11, span=10)
    first, second, _ = take_all(queue)
    assert queue.span == 11
    assert not queue.may_pull()
    queue.settle(second)
    assert not queue.may_pull()
    queue.settle(first)
    assert queue.span == 0
    assert queue.may_pull()
    assert filled(0, 10**6, span=None).may_pull()


def test_room_is_told_once_when_there_is_some():
    told = []
    queue = filled(0, 1, 2, 3, messages=2)
    queue.on_room = lambda: told.append(queue.count)
    for message in take_all(queue):
        queue.settle(message)
    assert told == [2]


def test_a_pull_task_that_waits_for_room_hears_of_the_end_and_of_resumption():
    for end in ("drop", "resume"):
        told = []
        queue = filled(0)
        queue.pause()
        queue.on_room = lambda told=told: told.append(1)
        getattr(queue, end)()
        assert told == [1]


def test_the_application_settles_up_to_an_offset():
    queue = filled(1, 2, 3, 4)
    queue.take()
    queue.settled_to(3)
    assert queue.position == 3
    assert [message.queue_offset for message in take_all(queue)] == [3, 4]


def test_overdue_are_the_messages_at_the_head_that_were_handed_out_long_ago():
    queue = filled(1, 2, 3)
    first, second = queue.take(), queue.take()
    first.taken_at_s, second.taken_at_s = 100.0, 105.0
    assert queue.overdue(109.0, 10.0) == []
    assert queue.overdue(112.0, 10.0) == [first]
    assert queue.overdue(115.0, 10.0) == [first, second]


@given(st.permutations(range(20)))
def test_offsets_in_any_order_are_settled_in_any_order(offsets):
    queue = filled(*offsets, next_offset=20)
    left = set(offsets)
    for message in take_all(queue):
        queue.settle(message)
        left.discard(message.queue_offset)
        assert queue.position == min(left, default=20)


class Against(RuleBasedStateMachine):
    """The queue against a set of offsets."""

    def __init__(self):
        super().__init__()
        self.queue = ProcessQueue(QUEUE, 0)
        self.held, self.out, self.end = set(), [], 0

    @rule(gaps=st.lists(st.integers(1, 3), max_size=5))
    def pulled(self, gaps):
        offsets = []
        for gap in gaps:
            offsets.append(self.end + gap - 1)
            self.end += gap
        self.queue.put([message_at(offset) for offset in offsets])
        self.queue.next_offset = self.end
        self.held.update(offsets)

    @rule()
    def handed_out(self):
        message = self.queue.take()
        if message is not None:
            self.out.append(message)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def settled(self, data):
        message = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        assert self.queue.settle(message)
        self.held.remove(message.queue_offset)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def put_back(self, data):
        message = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.queue.put_back([message])

    @invariant()
    def agrees(self):
        assert self.queue.position == min(self.held, default=self.end)
        assert self.queue.count == len(self.held)
        assert self.queue.ready == len(self.held) - len(self.out)
        assert self.queue.size_bytes == len(self.held) * message_at(0).size_bytes
        assert self.queue.span == (max(self.held) - min(self.held) if self.held else 0)


TestAgainst = Against.TestCase
