"""The fast writer of sends says what the ordinary way says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.errors import LocalProtocolError
from trio_mq.protocol import command as commands
from trio_mq.protocol import headers
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FRAME_MAX_BYTES, FrameReader
from trio_mq.protocol.headers.hotsend import SendFrames

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
I32 = st.integers(-(2**31), 2**31 - 1)


def read(data):
    (frame,) = FrameReader().feed(data)
    return commands.decode(frame)


@given(
    TEXTS, TEXTS, TEXTS, I32, TEXTS, I32, I32, I32, st.integers(0, 2**62), I32, TEXTS, st.binary()
)
def test_same_as_the_ordinary_way(
    group, topic, default, count, broker, opaque, queue_id, sys_flag, born_ms, flag, text, body
):
    frames = SendFrames(group, topic, default, count, broker)
    fast = read(frames.frame(opaque, queue_id, sys_flag, born_ms, flag, text, body))
    header = headers.SendMessageRequestV2(
        group, topic, default, count, queue_id, sys_flag, born_ms, flag, text,
        reconsume_times=0, unit_mode=False, batch=False, broker_name=broker,
    )  # fmt: skip
    ordinary = Command(RequestCode.SEND_MESSAGE_V2, headers.encode(header), body, opaque=opaque)
    assert fast == read(commands.encode(ordinary))


def test_text_that_is_none_is_refused():
    with pytest.raises(LocalProtocolError, match="is not valid text"):
        SendFrames("g", "t", "d", 4, "b").frame(1, 0, 0, 0, 0, "\ud800", b"")


def test_a_body_over_the_limit_of_frames_is_refused():
    with pytest.raises(LocalProtocolError, match="over the limit"):
        SendFrames("g", "t", "d", 4, "b").frame(1, 0, 0, 0, 0, "", b"x" * FRAME_MAX_BYTES)
