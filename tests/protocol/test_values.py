"""Values of headers and bodies behave as ``attrs.frozen`` makes them."""

from __future__ import annotations

import copy
import pickle

import attrs
import pytest

from trio_mq.protocol import bodies, headers
from trio_mq.protocol.headers import SendMessageReply, SendMessageRequest, SendMessageRequestV2
from trio_mq.protocol.values import value


@value
class Ours:
    """A value of ours."""

    name: str
    number: int = 0
    more: tuple[int, ...] = attrs.field(factory=tuple)


@attrs.frozen
class Theirs:
    """The same from attrs."""

    name: str
    number: int = 0
    more: tuple[int, ...] = attrs.field(factory=tuple)


@pytest.mark.parametrize("arguments", [("a",), ("a", 1), ("b", 1), ("a", 1, (2,)), ("é'", -1)])
def test_text_equality_and_hash_are_those_of_attrs(arguments: tuple[object, ...]) -> None:
    ours, theirs = Ours(*arguments), Theirs(*arguments)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert ours == Ours(*arguments)
    assert hash(ours) == hash(Ours(*arguments))
    for other in (("a",), ("a", 1), ("c", 1)):
        assert (ours == Ours(*other)) is (theirs == Theirs(*other))
        assert (ours != Ours(*other)) is (theirs != Theirs(*other))
    assert ours != theirs
    assert ours != arguments


def test_values_are_frozen_and_have_no_other_attributes() -> None:
    ours = Ours("a")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        ours.name = "b"
    assert not hasattr(ours, "__dict__")
    assert attrs.evolve(ours, number=7) == Ours("a", 7)
    assert attrs.asdict(ours) == {"name": "a", "number": 0, "more": ()}
    assert copy.copy(ours) == ours
    assert pickle.loads(pickle.dumps(ours)) == ours


def test_a_class_below_another_is_another_class() -> None:
    fields = ("PG", "T", "TBW102", 4, 0, 0, 1, 0)
    short, long = SendMessageRequestV2(*fields), SendMessageRequest(*fields)
    assert short != long
    assert long != short
    assert len({short, long, SendMessageRequest(*fields)}) == 2
    assert repr(short).startswith("SendMessageRequestV2(producer_group='PG', topic='T', ")


def test_every_header_and_body_is_made_so() -> None:
    """A class with an equality compiled for it alone costs a start twice as much."""
    classes = [
        held
        for module in (headers, bodies)
        for held in vars(module).values()
        if attrs.has(held) and held is not bodies.MessageQueue
    ]
    assert len(classes) > 130
    assert {cls for cls in classes if cls.__eq__ is not SendMessageReply.__eq__} == set()
