"""A message line as a new message: what of the old one is the application's.

In: a line of ``docs/reference/message-lines.md``. Out: arguments of :class:`trio_mq.Message`. Called by
:mod:`trio_mq.cli.send`. Ids, delays, retries and what brokers note in properties belong to the copy that was read, and
are left out: the new message is an ordinary one.
"""

from __future__ import annotations

from typing import Any, Final

from trio_mq.errors import BodyError
from trio_mq.lookinside.lines import parse
from trio_mq.protocol import properties as props
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.message import decompress

#: Names of RocketMQ's own; the application gives these by arguments of a message, or not at all.
_OURS: Final = frozenset(
    value for name, value in vars(props).items() if name.isupper() and isinstance(value, str)
) - {props.PRIORITY}


def parts_of(line: bytes) -> dict[str, Any]:
    """Body, tags, keys, sharding key and the application's properties. BadLine says what is wrong with a line."""
    found = parse(line.decode("utf-8", "surrogateescape"), now_ms=0)
    if found.sys_flag & MessageFlag.INNER_BATCH:
        raise BodyError(
            "it holds a batch; read it with `trio-mq consume --json`, which takes it apart"
        )
    named = props.parse(found.properties)
    parts: dict[str, Any] = {
        "body": decompress(found.body, found.sys_flag),
        "flag": found.flag,
        "properties": {name: value for name, value in named.items() if name not in _OURS},
    }
    if named.get(props.TAGS):
        parts["tags"] = named[props.TAGS]
    if named.get(props.KEYS):
        parts["keys"] = tuple(named[props.KEYS].split())
    if named.get(props.SHARDING_KEY):
        parts["sharding_key"] = named[props.SHARDING_KEY]
    return parts
