"""One link: matching replies, the peer's requests, ends of all kinds. Each test under both
backends.
"""

import anyio
import attrs
import pytest

from trio_mq.config.addresses import Address
from trio_mq.errors import LocalProtocolError, PeerUnavailable
from trio_mq.net import link as links
from trio_mq.net.link import open_link
from trio_mq.protocol import command as commands
from trio_mq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader
from trio_mq.testing.links import memory_pair

ADDRESS = Address("ns1", 9876)
SHORT_S = 0.02


class FarEnd:
    """The peer of a link under test, driven by hand."""

    def __init__(self, stream):
        self.stream = stream
        self._reader = FrameReader()
        self._waiting = []

    async def next(self):
        """The next command that arrives."""
        while not self._waiting:
            frames = self._reader.feed(await self.stream.receive())
            self._waiting += [commands.decode(frame) for frame in frames]
        return self._waiting.pop(0)

    async def send(self, command):
        await self.stream.send(commands.encode(command))

    async def answer(self, request, **fields):
        reply = Command(code=0, opaque=request.opaque, flag=FLAG_RESPONSE)
        await self.send(attrs.evolve(reply, **fields))


def request(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, **fields):
    return Command(code=code, **fields)


def test_call_returns_the_reply_whatever_its_code(run_on):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)

        async def peer():
            got = await far.next()
            assert (got.code, got.ext, got.body) == (105, {"topic": "T"}, b"body")
            await far.answer(got, code=17, remark="no such topic")

        async with open_link(ours, ADDRESS) as link, anyio.create_task_group() as tasks:
            tasks.start_soon(peer)
            reply = await link.call(request(ext={"topic": "T"}, body=b"body"))
            assert (reply.code, reply.remark) == (17, "no such topic")

    run_on(main)


def test_replies_in_any_order_reach_their_calls(run_on):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        answers = {}

        async def ask(link, name):
            answers[name] = (await link.call(request(ext={"name": name}))).body.decode()

        async with open_link(ours, ADDRESS) as link, anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(ask, link, f"n{n}")
            got = [await far.next() for _ in range(10)]
            assert len({each.opaque for each in got}) == 10
            for each in reversed(got):
                await far.answer(each, body=each.ext["name"].encode())
        assert answers == {f"n{n}": f"n{n}" for n in range(10)}

    run_on(main)


def test_large_frames_pass_in_both_directions(run_on):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        body = bytes(range(256)) * 8192  # 2 MiB, many times what a stream holds

        async def peer():
            got = await far.next()
            await far.answer(got, body=got.body[::-1])

        async with open_link(ours, ADDRESS) as link, anyio.create_task_group() as tasks:
            tasks.start_soon(peer)
            assert (await link.call(request(body=body))).body == body[::-1]

    run_on(main)


def test_timeout_names_address_request_and_next_step(run_on):
    async def main():
        ours, theirs = memory_pair()
        async with open_link(ours, ADDRESS) as link:
            with pytest.raises(PeerUnavailable) as caught:
                await link.call(request(), SHORT_S)
            assert str(caught.value) == (
                "ns1:9876: no answer to GET_ROUTEINFO_BY_TOPIC (105) within 0.02 s; "
                "check that a RocketMQ peer listens there and is not overloaded"
            )
            # The link lives: the late reply is dropped, and the next call gets its own.
            far = FarEnd(theirs)
            late = await far.next()
            await far.answer(late, remark="late")
            async with anyio.create_task_group() as tasks:

                async def peer():
                    await far.answer(await far.next(), remark="right")

                tasks.start_soon(peer)
                assert (await link.call(request())).remark == "right"

    run_on(main)


def test_cancelled_call_leaves_the_link_usable(run_on):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        async with open_link(ours, ADDRESS) as link:
            # Larger than the stream holds, so that the cancel finds the frame half written.
            with anyio.move_on_after(SHORT_S) as scope:
                await link.call(request(body=b"x" * 1_000_000), 60)
            assert scope.cancelled_caught
            async with anyio.create_task_group() as tasks:

                async def peer():
                    assert len((await far.next()).body) == 1_000_000
                    await far.answer(await far.next(), remark="second")

                tasks.start_soon(peer)
                assert (await link.call(request())).remark == "second"

    run_on(main)


def test_peer_closing_fails_all_calls_at_once(run_on):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        failures = []

        async def ask(link):
            try:
                await link.call(request(), 60)
            except PeerUnavailable as error:
                failures.append(str(error))

        async with open_link(ours, ADDRESS) as link:
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask, link)
                for _ in range(3):
                    await far.next()
                await theirs.aclose()
            assert link.closed
            with pytest.raises(PeerUnavailable, match="before HEART_BEAT"):
                await link.call(request(RequestCode.HEART_BEAT))
        assert len(failures) == 3
        assert "the peer closed the connection before it answered" in failures[0]

    run_on(main)


def test_reset_ends_the_link(run_on):
    async def main():
        ours, theirs = memory_pair()
        async with open_link(ours, ADDRESS) as link, anyio.create_task_group() as tasks:

            async def peer():
                await FarEnd(theirs).next()
                theirs.wire.reset()

            tasks.start_soon(peer)
            with pytest.raises(PeerUnavailable, match="the peer closed the connection"):
                await link.call(request(), 60)

    run_on(main)


def test_half_open_peer_costs_one_timeout(run_on):
    async def main():
        ours, theirs = memory_pair()
        theirs.wire.cut()
        async with open_link(ours, ADDRESS) as link:
            with pytest.raises(PeerUnavailable, match="no answer"):
                await link.call(request(), SHORT_S)

    run_on(main)


def test_closing_here_fails_calls_in_progress(run_on):
    async def main():
        ours, theirs = memory_pair()
        async with open_link(ours, ADDRESS) as link, anyio.create_task_group() as tasks:

            async def close():
                await FarEnd(theirs).next()
                await link.aclose()

            tasks.start_soon(close)
            with pytest.raises(PeerUnavailable, match="this side closed the connection"):
                await link.call(request(), 60)
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await theirs.receive()

    run_on(main)


def test_close_sends_what_is_waiting(run_on):
    async def main():
        ours, theirs = memory_pair()
        async with open_link(ours, ADDRESS) as link:
            await link.send_oneway(request(RequestCode.UPDATE_CONSUMER_OFFSET))
        got = await FarEnd(theirs).next()
        assert got.code == RequestCode.UPDATE_CONSUMER_OFFSET
        assert got.flag == FLAG_ONEWAY

    run_on(main)


def test_close_does_not_wait_for_a_peer_that_never_reads(run_on, monkeypatch):
    monkeypatch.setattr(links, "CLOSE_GRACE_S", SHORT_S)

    async def main():
        ours, _ = memory_pair()
        with anyio.fail_after(5):
            async with open_link(ours, ADDRESS) as link:
                await link.send_oneway(request(body=b"x" * 1_000_000))

    run_on(main)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: ns1\r\n\r\n",
        bytes.fromhex("00000008 00000004") + b"nope",
        bytes.fromhex("00000002 0000"),
    ],
    ids=["another protocol", "header is no JSON", "length too small"],
)
def test_broken_format_ends_the_link_with_the_reason(run_on, garbage):
    async def main():
        ours, theirs = memory_pair()
        async with open_link(ours, ADDRESS) as link, anyio.create_task_group() as tasks:

            async def peer():
                await FarEnd(theirs).next()
                await theirs.send(garbage)

            tasks.start_soon(peer)
            with pytest.raises(PeerUnavailable, match="it broke the format: "):
                await link.call(request(), 60)

    run_on(main)


def test_requests_of_the_peer_are_answered_on_the_same_link(run_on):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        seen = []

        def on_request(link, command):
            seen.append((link.address, command.code, command.body))
            return Command(code=0, body=command.body.upper())

        async with open_link(ours, ADDRESS, on_request=on_request):
            # The same number as a call of ours could have: only the response bit tells them apart.
            await far.send(request(RequestCode.CONSUME_MESSAGE_DIRECTLY, opaque=1, body=b"abc"))
            reply = await far.next()
            assert (reply.opaque, reply.flag, reply.body) == (1, FLAG_RESPONSE, b"ABC")
            await far.send(
                request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, opaque=2, flag=FLAG_ONEWAY)
            )
            await far.send(request(RequestCode.GET_CONSUMER_RUNNING_INFO, opaque=3))
            assert (await far.next()).opaque == 3  # one-way requests are never answered
        assert [code for _, code, _ in seen] == [309, 40, 307]
        assert seen[0][0] == ADDRESS

    run_on(main)


def test_request_of_the_peer_can_be_answered_later(run_on):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        later = []

        def on_request(link, command):
            later.append((link, command))

        async with open_link(ours, ADDRESS, on_request=on_request):
            await far.send(request(RequestCode.CONSUME_MESSAGE_DIRECTLY, opaque=1))
            await far.send(request(RequestCode.GET_CONSUMER_RUNNING_INFO, opaque=2))
            while len(later) < 2:
                await anyio.lowlevel.checkpoint()
            for link, command in reversed(later):
                link.respond(command, Command(code=0))
            assert [(await far.next()).opaque, (await far.next()).opaque] == [2, 1]

    run_on(main)


def test_unexpected_requests_and_faults_get_a_code(run_on, caplog):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        async with open_link(ours, ADDRESS):
            await far.send(request(777, opaque=5))
            reply = await far.next()
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "777" in reply.remark

        def on_request(link, command):
            raise ZeroDivisionError("by zero")

        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        async with open_link(ours, ADDRESS, on_request=on_request):
            await far.send(request(opaque=6))
            reply = await far.next()
            assert (reply.code, reply.remark) == (1, "ZeroDivisionError: by zero")

    run_on(main)
    assert "GET_ROUTEINFO_BY_TOPIC (105) failed" in caplog.text


def test_peer_that_asks_and_never_reads_is_given_up(run_on, monkeypatch):
    monkeypatch.setattr(links, "REPLIES_MAX_BYTES", 200_000)

    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        async with open_link(
            ours, ADDRESS, on_request=lambda link, command: Command(code=0, body=b"x" * 100_000)
        ) as link:
            for n in range(4):
                await far.send(request(opaque=n))
            with pytest.raises(PeerUnavailable):
                await link.call(request(), 60)
            assert "does not read" in link.ended

    run_on(main)


def test_senders_wait_while_too_much_is_unsent(run_on, monkeypatch):
    monkeypatch.setattr(links, "OUTBOX_MAX_BYTES", 100_000)

    async def main():
        ours, theirs = memory_pair()
        async with open_link(ours, ADDRESS) as link:
            for _ in range(2):
                await link.send_oneway(request(body=b"x" * 90_000))
            with pytest.raises(PeerUnavailable, match="does not take"):
                await link.send_oneway(request(body=b"y"), SHORT_S)
            far = FarEnd(theirs)
            for _ in range(2):
                await far.next()
            await link.send_oneway(request(body=b"z"))
            assert (await far.next()).body == b"z"

    run_on(main)


def test_a_command_that_cannot_be_written_fails_alone(run_on):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        async with open_link(ours, ADDRESS) as link, anyio.create_task_group() as tasks:
            with pytest.raises(LocalProtocolError):
                await link.call(request(body=bytes(17_000_000)))

            async def peer():
                await far.answer(await far.next())

            tasks.start_soon(peer)
            assert (await link.call(request())).code == 0

    run_on(main)


def test_an_error_of_the_block_leaves_as_itself(run_on):
    async def main():
        ours, theirs = memory_pair()
        with pytest.raises(KeyError, match="mine"):
            async with open_link(ours, ADDRESS):
                raise KeyError("mine")
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await theirs.receive()

    run_on(main)


def test_numbers_wrap_within_31_bits(run_on):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        async with open_link(ours, ADDRESS) as link:
            link._next_opaque = 2**31 - 2
            for _ in range(2):
                await link.send_oneway(request())
            assert [(await far.next()).opaque for _ in range(2)] == [2**31 - 1, 0]

    run_on(main)


class Nowait:
    """A stream that takes some bytes at once, and what it was given in which way."""

    def __init__(self, stream, takes):
        self._stream = stream
        self.takes = takes
        self.at_once = b""
        self.sent = []
        self.receive = stream.receive
        self.aclose = stream.aclose

    def send_nowait(self, data):
        taken = data[: self.takes]
        self.takes -= len(taken)
        self.at_once += taken
        return len(taken)

    async def send(self, data):
        self.sent.append(data)
        await self._stream.send(data)


def frames(data):
    return [commands.decode(frame) for frame in FrameReader().feed(data)]


def encoded(**fields):
    return lambda opaque: commands.encode(request(opaque=opaque, **fields))


def test_a_single_request_is_written_without_another_task(run_on):
    async def main():
        ours, _ = memory_pair()
        stream = Nowait(ours, 1_000_000)
        async with open_link(stream, ADDRESS) as link:
            link.post(encoded(body=b"abc"), lambda reply: None, code=105)
            (command,) = frames(stream.at_once)
            assert command.body == b"abc"
        assert stream.sent == []

    run_on(main)


@pytest.mark.parametrize("takes", [0, 1, 50, 170])
def test_what_is_not_taken_at_once_follows_in_order(run_on, takes):
    async def main():
        ours, _ = memory_pair()
        stream = Nowait(ours, takes)
        async with open_link(stream, ADDRESS) as link:
            for body in (b"one", b"two", b"three"):
                link.post(encoded(body=body), lambda reply: None, code=105)
            await anyio.wait_all_tasks_blocked()
            link.post(encoded(body=b"four"), lambda reply: None, code=105)
            await anyio.wait_all_tasks_blocked()
        found = frames(stream.at_once + b"".join(stream.sent))
        assert [command.body for command in found] == [b"one", b"two", b"three", b"four"]
        assert len(stream.sent) == 2  # the first three went together

    run_on(main)


def test_requests_that_need_not_go_at_once_go_together(run_on):
    async def main():
        ours, _ = memory_pair()
        stream = Nowait(ours, 1_000_000)
        async with open_link(stream, ADDRESS) as link:
            for _ in range(10):
                link.post(encoded(), lambda reply: None, code=105, at_once=False)
            await anyio.wait_all_tasks_blocked()
        assert stream.at_once == b""
        assert len(stream.sent) == 1
        assert len(frames(stream.sent[0])) == 10

    run_on(main)


def test_every_post_is_told_once_what_became_of_it(run_on):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        told = {}

        def post(name, timeout_s=60):
            return link.post(
                encoded(), told.setdefault(name, []).append, code=105, timeout_s=timeout_s
            )

        async with open_link(ours, ADDRESS) as link:
            post("answered")
            post("late", SHORT_S)
            link.forget(post("forgotten"))
            await far.answer(await far.next(), remark="yes")
            post("left")
            await anyio.sleep(3 * SHORT_S)
            await far.answer(await far.next(), remark="too late")
            await anyio.wait_all_tasks_blocked()
            assert [each.remark for each in told["answered"]] == ["yes"]
            assert "no answer" in str(told["late"][0])
            assert told["forgotten"] == told["left"] == []
        assert [len(told[name]) for name in ("answered", "late", "forgotten", "left")] == [
            1,
            1,
            0,
            1,
        ]
        assert isinstance(told["left"][0], PeerUnavailable)
        with pytest.raises(PeerUnavailable, match="before GET_ROUTEINFO"):
            post("closed")
        assert told["closed"] == []

    run_on(main)


def test_short_times_are_kept_beside_long_ones(run_on):
    async def main():
        ours, _ = memory_pair()
        ended = []

        async def ask(timeout_s):
            with pytest.raises(PeerUnavailable, match=f"within {timeout_s:g} s"):
                await link.call(request(), timeout_s)
            ended.append(timeout_s)

        async with open_link(ours, ADDRESS) as link:
            began_s = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                for timeout_s in (0.09, 0.03, 0.06):
                    tasks.start_soon(ask, timeout_s)
            assert ended == [0.03, 0.06, 0.09]
            assert anyio.current_time() - began_s < 1

    run_on(main)


def test_a_retired_link_answers_what_is_on_its_way_and_ends(run_on):
    async def main():
        ours, theirs = memory_pair()
        far = FarEnd(theirs)
        answers = []
        async with open_link(ours, ADDRESS) as link:
            for _ in range(2):
                link.post(encoded(), answers.append, code=105)
            link.retire()
            assert not link.usable
            assert not link.closed
            for _ in range(2):
                await far.answer(await far.next())
            await link.wait_ended()
            assert [reply.code for reply in answers] == [0, 0]
            assert "about to stop" in link.ended

    run_on(main)


def test_a_retired_link_without_requests_ends_at_once(run_on):
    async def main():
        ours, _ = memory_pair()
        async with open_link(ours, ADDRESS) as link:
            link.retire()
            assert link.closed

    run_on(main)
