"""The peers' JSON: what they write, what is let pass, and where broken text fails."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_stores import NAMES, read_files
from trio_mq.errors import BodyError, LocalProtocolError
from trio_mq.protocol import jsondialect
from trio_mq.protocol.jsondialect import MAX_DEPTH, MessageQueue

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
QUEUES = st.builds(MessageQueue, TEXT, TEXT, st.integers(-1, 1000))
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT
KEYS = TEXT | st.integers(-(2**63), 2**63 - 1) | QUEUES
VALUES = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
PLAIN_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
STANDARD_VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT.filter(lambda text: not text.isdecimal()) | st.integers(), inner)
    ),
    max_leaves=20,
)
MQ = MessageQueue("T", "b", 0)


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


# --- both directions


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{0:"x",1:"y"}', {0: "x", 1: "y"}),
        (b'{"a":{},-5:[]}', {"a": {}, -5: []}),
        (b'{{"brokerName":"b","queueId":0,"topic":"T"}:7}', {MQ: 7}),
        (
            b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":9}}}',
            {"offsetTable": {MQ: {"maxOffset": 9}}},
        ),
        (
            b'{"offsetTable":{"T@CG":{0:5,1:6}}}',
            {"offsetTable": {"T@CG": {0: 5, 1: 6}}},
        ),
        (b'{"tps":0.0,"s":"\\u0001\\"\\\\"}', {"tps": 0.0, "s": '\x01"\\'}),
        ('{"主题":"☃😀"}'.encode(), {"主题": "☃😀"}),
        (b"[null,true,false]", [None, True, False]),
        (b"{}", {}),
        (b"[]", []),
        (b'"x"', "x"),
    ],
)
def test_what_the_peers_write(text: bytes, value: Any) -> None:
    assert jsondialect.loads(text) == value
    assert jsondialect.loads(jsondialect.dumps(value)) == value
    # Same characters, only the order of keys is ours.
    assert sorted(jsondialect.dumps(value)) == sorted(text)


@given(VALUES)
def test_round_trip(value: Any) -> None:
    assert jsondialect.loads(jsondialect.dumps(value)) == without_none(value)


@given(PLAIN_VALUES, st.sampled_from([None, 1]))
def test_plain_json_is_read_as_such(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert jsondialect.loads(text) == value
    assert jsondialect.loads(text.encode()) == value
    # The same text, read by the slow reader: an unquoted key sends it there.
    assert jsondialect.loads(f"{{0:{text}}}") == {0: value}


@pytest.mark.parametrize("name", NAMES)
def test_state_files_of_the_peer(name: str) -> None:
    files = {
        path: data for path, data in read_files(name, "config").items() if path.endswith(".json")
    }
    assert len(files) >= 5
    for data in files.values():
        value = jsondialect.loads(data)
        assert jsondialect.loads(jsondialect.dumps(value)) == value
    offsets = jsondialect.loads(files["consumerOffset.json"])["offsetTable"]
    assert all(type(queue) is int for table in offsets.values() for queue in table)


# --- reading


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a':'b'}", {"a": "b"}),
        (r"""{'it\'s':"it's","q":'"x"'}""", {"it's": "it's", "q": '"x"'}),
        (r"""{0:'\\','b':'\"','c':'\u00e9\n'}""", {0: "\\", "b": '"', "c": "é\n"}),
        ("{name:1,$_x9:2}", {"name": 1, "$_x9": 2}),
        ("[1,2,]", [1, 2]),
        ('{"a":1,}', {"a": 1}),
        ("{0:1,}", {0: 1}),
        (" \r\n\t{ 0 : [ 1 , 2 ] , } \n", {0: [1, 2]}),
        ('{0:"a\tb\x01"}', {0: "a\tb\x01"}),
        ("{0:-1.5e3,1:0,2:-0.0,3:1E2}", {0: -1500.0, 1: 0, 2: 0.0, 3: 100.0}),
        ("{0:1,0:2}", {0: 2}),
        ('{0:1,"0":2}', {0: 1, "0": 2}),
        ("{0:null,1:true,2:false}", {0: None, 1: True, 2: False}),
        ("{{topic:'T',brokerName:'b',queueId:0,}:7}", {MQ: 7}),
        ('{"a":[{0:{"b":1}}]}', {"a": [{0: {"b": 1}}]}),
    ],
)
def test_what_is_let_pass(text: str, value: Any) -> None:
    assert jsondialect.loads(text) == value
    assert jsondialect.loads(text.encode()) == value


def test_not_a_number_is_read() -> None:
    found = jsondialect.loads("{0:NaN}")
    assert found[0] != found[0]


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "expected a value, found the end"),
        ("   ", 3, "expected a value, found the end"),
        ("{", 1, "expected a key, found the end"),
        ("[1", 2, "expected ',' or ']', found the end"),
        ('{"a":1', 6, "expected ',' or '}', found the end"),
        ('{"a" 1}', 5, "expected ':' after a key, found '1}'"),
        ("{,}", 1, "expected a key"),
        ('{"a":1,,}', 7, "expected a key"),
        ("[,1]", 1, "expected a value"),
        ("[1,,2]", 3, "expected a value, found ',2]'"),
        ("[1 2]", 3, "expected ',' or ']'"),
        ("{0:1]", 4, "expected ',' or '}'"),
        ("{}x", 2, "expected the end, found 'x'"),
        ("{0:tru}", 3, "expected a value, found 'tru}'"),
        ("{0:undefined}", 3, "expected a value"),
        ("{0:-}", 3, "expected a value"),
        ("{0:1L}", 3, "expected a value"),
        ("{0:.5}", 3, "expected a value"),
        ("{0:1.}", 3, "expected a value"),
        ("{1.5:1}", 1, "expected a key"),
        ('{0:"abc', 3, "string without a closing quote"),
        ("{0:'abc\"}", 3, "string without a closing quote"),
        (r'{0:"\x"}', 3, "broken string"),
        ('{0:"\\\t"}', 3, "broken string"),
        (r'{0:"\ud83d"}', 3, "broken string"),
        (r'{0:"\u12"}', 3, "broken string"),
        ('{0:"a\0b"}', 5, "NUL byte"),
        ('{"a":1}\0\0\0', 7, "NUL byte"),
        ("\0", 0, "NUL byte"),
        ("{{}:1}", 1, "an object as a key needs 'topic', 'brokerName' and 'queueId'"),
        ("{{topic:'T',brokerName:'b',queueId:'0'}:1}", 1, "an object as a key needs"),
        ("{[1]:1}", 1, "expected a key"),
        ("{true", 5, "expected ':' after a key"),
        ("{0:" + "9" * 5000 + "}", 3, "expected a value"),
    ],
)
def test_where_broken_text_fails(text: str, position: int, problem: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(BodyError) as caught:
            jsondialect.loads(data)
        assert str(caught.value).startswith(f"JSON, character {position}: {problem}")


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(BodyError, match="JSON, byte 6: not UTF-8"):
        jsondialect.loads(b'{"a":"\xff"}')


def test_text_that_utf8_cannot_hold() -> None:
    with pytest.raises(BodyError, match="broken string"):
        jsondialect.loads('{"a":"\ud800"}')


@given(st.text("{}[]\":,'\\0a-.eTn \t\0u", max_size=40))
def test_any_text_is_a_value_or_a_body_error(text: str) -> None:
    with contextlib.suppress(BodyError):
        jsondialect.loads(text)


@pytest.mark.parametrize(
    ("opening", "closing"), [("[", "]"), ('{"a":', "}"), ("{0:", "}"), ("[{0:", "}]")]
)
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 100, 100_000])
def test_deep_nesting_is_an_error(opening: str, closing: str, levels: int) -> None:
    for text in (opening * levels + "1" + closing * levels, opening * levels):
        with pytest.raises(BodyError, match="nested deeper than 64 levels"):
            jsondialect.loads(text)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ("{0:", "}")])
def test_the_deepest_nesting_is_read(opening: str, closing: str) -> None:
    value = jsondialect.loads(opening * MAX_DEPTH + "1" + closing * MAX_DEPTH)
    for _ in range(MAX_DEPTH):
        (value,) = value.values() if isinstance(value, dict) else value
    assert value == 1


def test_many_brackets_are_not_deep() -> None:
    value = {"a": [{"b": [i]} for i in range(500)]}
    assert jsondialect.loads(json.dumps(value)) == value
    # Enough brackets to be looked at, and one branch that goes down to the last allowed level.
    text = "[" * MAX_DEPTH + "1" + "]" * (MAX_DEPTH - 1) + ",[],[]]"
    assert jsondialect.loads(text)[1:] == [[], []]


def test_the_slow_reader_fits_under_a_deep_stack() -> None:
    def call(levels: int) -> Any:
        return (
            call(levels - 1)
            if levels
            else jsondialect.loads("{0:" * MAX_DEPTH + "1" + "}" * MAX_DEPTH)
        )

    assert call(sys.getrecursionlimit() // 2)


# --- writing


def test_keys_are_in_order_and_none_is_left_out() -> None:
    value = {"b": 1, "a": None, "B": [None], 10: 1, 9: 2, MessageQueue("U", "b", 1): 3, MQ: 4}
    assert jsondialect.dumps(value) == (
        b'{"B":[null],"b":1,9:2,10:1,{"brokerName":"b","queueId":0,"topic":"T"}:4,'
        b'{"brokerName":"b","queueId":1,"topic":"U"}:3}'
    )


def test_sets_and_tuples_are_lists() -> None:
    value = {"s": {3, 1, 2}, "t": (1, "x"), "q": frozenset({MQ}), "e": set()}
    expected = b'{"e":[],"q":[{"brokerName":"b","queueId":0,"topic":"T"}],"s":[1,2,3],"t":[1,"x"]}'
    assert jsondialect.dumps(value) == expected


def test_standard_json_has_quoted_integers() -> None:
    assert jsondialect.dumps({0: {1: "x"}, "q": [MQ]}, standard=True) == (
        b'{"q":[{"brokerName":"b","queueId":0,"topic":"T"}],"0":{"1":"x"}}'
    )


@given(STANDARD_VALUES)
def test_standard_json_is_json(value: Any) -> None:
    written = jsondialect.dumps(value, standard=True)
    assert json.loads(written) == json.loads(json.dumps(without_none(value)))


def test_standard_json_has_no_object_keys() -> None:
    with pytest.raises(LocalProtocolError, match="cannot be a key in plain JSON"):
        jsondialect.dumps({MQ: 1}, standard=True)


def test_what_cannot_be_written() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(LocalProtocolError, match="contains itself"):
        jsondialect.dumps(endless)
    with pytest.raises(LocalProtocolError, match="not valid text"):
        jsondialect.dumps({"a": "\ud800"})
