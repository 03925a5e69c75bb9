"""What the released peer says about its own protocol; see ``tests/golden/apache-5.4.0/README.md``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

FOLDER = Path(__file__).parent.parent / "golden" / "apache-5.4.0"


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


@attrs.frozen
class Vector:
    """One command and its bytes, as the peer wrote them."""

    serialize: str
    code: int
    flag: int
    opaque: int
    version: int
    language: str
    remark: str | None
    ext: dict[str, str]
    body: bytes
    frame: bytes

    def __str__(self) -> str:
        return f"{self.serialize}-{self.code}"


def vectors() -> list[Vector]:
    return [
        Vector(
            serialize=found["serialize"],
            code=found["code"],
            flag=found["flag"],
            opaque=found["opaque"],
            version=found["version"],
            language=found["language"],
            remark=found["remark"],
            ext=found["extFields"] or {},
            body=bytes.fromhex(found["bodyHex"] or ""),
            frame=bytes.fromhex(found["frameHex"]),
        )
        for found in load("vectors.json")
    ]


VECTORS = vectors()
