"""Custom headers: the text pairs of a command to one typed value, and back.

In: ``Command.ext`` (or a header value). Out: a header value (or text pairs). Called for each
request by the request table.
Rules (Apache: ``RemotingCommand.decodeCommandCustomHeader``): integers are decimal text, booleans
are ``true`` in any case and everything else is false, unknown pairs are ignored, a null is not
written. Unlike the peers, a missing required field is an error that names it, and not a null that
fails somewhere else.

A header class is a :func:`~trio_mq.protocol.values.value`. Its fields are ``str``, ``bool``,
:data:`I32`, :data:`I64`, a ``StrEnum``, or one of these with ``None``; a field without a default
is required. ``SHORT`` may give other wire names to all fields (send, version 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import NoneType
from typing import Annotated, Any, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import attrs

from trio_mq.errors import HeaderError
from trio_mq.protocol.names import wire_name

H = TypeVar("H")

I32: TypeAlias = Annotated[int, 32]
"""An integer that the peers hold in 32 bits."""

I64: TypeAlias = Annotated[int, 64]
"""An integer that the peers hold in 64 bits."""

_Read: TypeAlias = Callable[[str], object]
_Step: TypeAlias = tuple[str, str, _Read | None, object]

_SHOWN_CHARACTERS: Final = 60
"""How much of a bad value goes into an error; a header may be 16 MB long."""


def decode(cls: type[H], ext: Mapping[str, str]) -> H:
    """The header value in ``ext``; :class:`HeaderError` names the field that is missing or bad."""
    values: list[object] = []
    for name, label, read, default in _plans.get(cls) or _make_plan(cls):
        text = ext.get(name)
        if text is None:
            if default is attrs.NOTHING:
                raise HeaderError(f"{cls.__name__}: required field {label} is missing")
            values.append(default)
        elif read is None:
            values.append(text)
        else:
            try:
                values.append(read(text))
            except ValueError as error:
                shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
                raise HeaderError(
                    f"{cls.__name__}: field {label} is {shown!r}, but {error}"
                ) from None
    return cls(*values)


def encode(value: object) -> dict[str, str]:
    """The text pairs of a header value; fields that are ``None`` are left out."""
    cls = type(value)
    ext: dict[str, str] = {}
    for attribute, name in _names.get(cls) or _make_names(cls):
        field = getattr(value, attribute)
        if field is None:
            continue
        if field is True:
            ext[name] = "true"
        elif field is False:
            ext[name] = "false"
        else:
            ext[name] = str(field)
    return ext


# Made at the first use of a class and kept: there are about a hundred.
_plans: dict[type, tuple[_Step, ...]] = {}
_names: dict[type, tuple[tuple[str, str], ...]] = {}


def _make_plan(cls: type) -> tuple[_Step, ...]:
    """Wire name, name for errors, reader and default of each argument of ``cls``, in order."""
    hints = get_type_hints(cls, include_extras=True)
    plan: list[_Step] = []
    for field, (_, name) in zip(attrs.fields(cls), _make_names(cls), strict=True):
        full_name = wire_name(field)
        label = repr(name) if name == full_name else f"{name!r} ({full_name})"
        plan.append((name, label, _reader(hints[field.name]), field.default))
    return _plans.setdefault(cls, tuple(plan))


def _make_names(cls: type) -> tuple[tuple[str, str], ...]:
    """Attribute and wire name of each field."""
    short: Mapping[str, str] | None = getattr(cls, "SHORT", None)
    names = (
        (field.name, wire_name(field) if short is None else short[field.name])
        for field in attrs.fields(cls)
    )
    return _names.setdefault(cls, tuple(names))


def _reader(hint: Any) -> _Read | None:
    """How to read a field of this type; ``None`` when the text is the value."""
    if get_origin(hint) is not Annotated:
        (hint,) = [a for a in get_args(hint) if a is not NoneType] or [hint]
    if hint is str:
        return None
    if hint is bool:
        return _boolean
    if hint == I32:
        return _integer_32
    if hint == I64:
        return _integer_64
    assert issubclass(hint, StrEnum), f"no header field can be a {hint}"
    choice: type[StrEnum] = hint
    return choice


def _boolean(text: str) -> bool:
    return text == "true" or text.lower() == "true"


def _integer_32(text: str) -> int:
    # Nine digits always fit: nearly every integer takes this way.
    return int(text) if len(text) < 10 and text.isdecimal() else _integer(text, 32)


def _integer_64(text: str) -> int:
    return int(text) if len(text) < 19 and text.isdecimal() else _integer(text, 64)


def _integer(text: str, bits: int) -> int:
    # int() alone takes blanks and underscores, and is quadratic in the number of digits.
    digits = text[1:] if text[:1] in ("-", "+") else text
    if digits.isdecimal() and len(digits) <= 20:
        value = int(text)
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return value
    raise ValueError(f"a {bits}-bit integer is needed")
