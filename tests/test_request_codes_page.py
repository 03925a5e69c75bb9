"""The page of request codes is up to date, and what it says is what broker and name server do."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import attrs
import pytest

from trio_mq.nameserver.nameserver import NameServer
from trio_mq.protocol import command as commands
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader
from trio_mq.protocol.message import Host

SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "generate_request_codes.py"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate_request_codes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@attrs.define(eq=False)
class FakePeer:
    """A connection that keeps what is written to it."""

    address: Host = attrs.field(factory=lambda: Host("127.0.0.1", 50_000))
    local_address: Host = attrs.field(factory=lambda: Host("127.0.0.1", 10_911))
    closed: bool = False
    stalled: bool = False
    data: bytes = b""

    @property
    def packed_address(self) -> bytes:
        return self.address.packed

    def write(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None:
        self.closed = True


def unsupported(handler: object, code: RequestCode) -> bool:
    """Whether a handler answers a bare request with code 3."""
    peer = FakePeer()
    frames = FrameReader().feed(commands.encode(Command(code, opaque=7)))
    handler.received(peer, frames)  # type: ignore[attr-defined]
    replies = [commands.decode(frame) for frame in FrameReader().feed(peer.data)]
    return [reply.code for reply in replies] == [ResponseCode.REQUEST_CODE_NOT_SUPPORTED]


def test_the_page_is_what_the_generator_writes(generate: ModuleType) -> None:
    assert generate.read() == generate.page(), "stale: run python docs/generate_request_codes.py"


def test_check_fails_for_a_stale_page(
    generate: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(generate, "PAGE", tmp_path / "request-codes.md")
    monkeypatch.setattr(sys, "argv", ["generate_request_codes.py"])
    assert generate.main() == 0
    monkeypatch.setattr(sys, "argv", ["generate_request_codes.py", "--check"])
    assert generate.main() == 0
    (tmp_path / "request-codes.md").write_text("old")
    assert generate.main() == 1
    assert capsys.readouterr().err.startswith("docs/reference/request-codes.md is stale")


def test_every_code_is_on_the_page(generate: ModuleType) -> None:
    page = generate.page()
    missing = [
        code.name
        for code in RequestCode
        if code not in generate.SENT_BY_SERVERS
        and f"| {int(code)} | {code.name} |" not in page
        and f"{code.name} ({int(code)})" not in page
    ]
    assert missing == []


async def test_the_broker_answers_the_codes_of_its_table_and_no_others(
    generate: ModuleType,
) -> None:
    broker = await generate.make_broker()
    listed = {*generate.SHORT_WAY, *broker.requests.codes}
    answered = {code for code in RequestCode if not unsupported(broker.face, code)}
    assert answered == listed


async def test_the_name_server_answers_the_codes_of_its_table_and_no_others(
    generate: ModuleType,
) -> None:
    answered = {code for code in RequestCode if not unsupported(NameServer(), code)}
    assert answered == generate.nameserver_codes().keys()
