"""The JSON-lines dialogue with a client driver (Java or Go): one command a line out, one answer a line in.

Answers may come in any order; :meth:`Driver.begin` starts a command and its :class:`Pending` collects the answer.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

import attrs


class ClientError(Exception):
    """What the client library threw: its class, the peers' code (0 when there is none) and the text."""

    def __init__(self, kind: str, code: int, message: str) -> None:
        super().__init__(f"{kind} code {code}: {message}")
        self.kind = kind
        self.code = code
        self.message = message


@attrs.define
class Pending:
    """A command that runs."""

    driver: Driver
    number: int
    op: str

    def result(self, timeout_s: float = 60.0) -> Any:
        """The answer; raises :class:`ClientError` when the client threw."""
        return self.driver.collect(self.number, self.op, timeout_s)

    def forget(self) -> None:
        """Nobody wants the answer."""
        self.driver.forgotten.add(self.number)


class Driver:
    """One driver process."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._stderr = log.open("ab")
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self.forgotten: set[int] = set()
        self._partial = b""
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
            env={**os.environ, **(env or {})}, start_new_session=True, bufsize=0,
            cwd=log.parent,  # clients leave files where they run: offsets of a broadcast, for one
        )  # fmt: skip

    def call(self, op: str, timeout_s: float = 60.0, **arguments: Any) -> Any:
        """Run one command to its end."""
        return self.begin(op, **arguments).result(timeout_s)

    def begin(self, op: str, **arguments: Any) -> Pending:
        """Start one command; None values are left out."""
        assert not {"id", "op"} & set(arguments), "these two name the command"
        number = next(self._numbers)
        command = {"id": number, "op": op, **{k: v for k, v in arguments.items() if v is not None}}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        return Pending(self, number, op)

    def collect(self, number: int, op: str, timeout_s: float) -> Any:
        """The answer to one command."""
        end = time.monotonic() + timeout_s
        while number not in self._answers:
            self._read(end - time.monotonic(), op)
        answer = self._answers.pop(number)
        if "error" in answer:
            error = answer["error"]
            raise ClientError(error["type"], error["code"], error["message"])
        return answer.get("ok")

    def _read(self, left_s: float, op: str) -> None:
        out = self.process.stdout
        assert out is not None
        if left_s <= 0 or not select.select([out], [], [], left_s)[0]:
            raise TimeoutError(f"no answer to {op}; log: {self.log}")
        data = os.read(out.fileno(), 1 << 20)
        if not data:
            raise RuntimeError(f"the driver ended during {op}; log: {self.log}")
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if answer["id"] in self.forgotten:
                self.forgotten.remove(answer["id"])
            else:
                self._answers[answer["id"]] = answer

    def close(self) -> None:
        """End it: the drivers stop at the end of their input."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process.stdout.close()
        self._stderr.close()
