"""Small steps that the tables share when they read and write their state files.

In: values of :mod:`trio_mq.protocol.jsondialect`. Out: their parts, checked. Called by the tables
of topics, groups and offsets. Fields that we do not know are handed back to be written again: a
file may come from a newer release of the peers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import attrs

from trio_mq.errors import BodyError
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import DataVersion
from trio_mq.protocol.names import wire_name

T = TypeVar("T", bound=attrs.AttrsInstance)


def next_version(version: DataVersion, now_ms: int) -> DataVersion:
    """The version after a change at `now_ms`."""
    return attrs.evolve(version, counter=version.counter + 1, timestamp=now_ms)


def is_older(version: DataVersion, known: DataVersion) -> bool:
    """Whether `version` is of a state before `known`: fewer changes, and the last of them earlier.

    Both, as either may mislead: a clock that was set back dates later changes earlier, and a broker that has begun
    anew counts from 0. The peers only look whether versions differ.
    """
    fewer = (version.state_version, version.counter) < (known.state_version, known.counter)
    return fewer and version.timestamp < known.timestamp


def json_object(value: Any, what: str) -> dict[str, Any]:
    """`value` as an object with text keys, empty for null; :class:`BodyError` naming `what`."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BodyError(f"{what} is not an object")
    return {str(key): item for key, item in value.items()}


def named_table(
    value: Any, table: str, cls: type[T], what: str, field: str
) -> tuple[dict[str, T], dict[str, dict[str, Any]]]:
    """The items of an object `value[table]` by name, as `cls`, and the fields of each that we do not know.

    The key is the name, whatever the item's own `field` (an attribute of `cls`) says. Errors name `what`.
    """
    found: dict[str, T] = {}
    unknown: dict[str, dict[str, Any]] = {}
    wire = wire_name(getattr(attrs.fields(cls), field))
    for name, item in json_object(value.get(table), table).items():
        fields = {wire: name, **json_object(item, f"{what} {name}")}
        config: Any = bodies.structure(cls, fields)
        found[name] = attrs.evolve(config, **{field: name})
        if rest := unknown_fields(cls, fields):
            unknown[name] = rest
    return found, unknown


def unknown_fields(cls: type, value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `value` that the body class `cls` has no place for."""
    known = _known(cls)
    return {name: item for name, item in value.items() if name not in known}


@cache
def _known(cls: type) -> frozenset[str]:
    return frozenset(wire_name(field) for field in attrs.fields(cls))
