"""The one converter between JSON values and body classes.

In: a body class and bytes (or a body value). Out: the value (or bytes). Called by processors, by
the name server and by the keeper of the broker's state files.
Rules: field names as in :mod:`trio_mq.protocol.names`; unknown keys are ignored; a null counts as
absent; numbers and booleans may be text (the Go client writes hash codes so). Fields that are
``None`` are not written. The dialect is that of :mod:`trio_mq.protocol.jsondialect`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from trio_mq.errors import BodyError
from trio_mq.protocol import jsondialect
from trio_mq.protocol.jsondialect import MessageQueue
from trio_mq.protocol.names import wire_name

B = TypeVar("B")

_ERRORS_SHOWN: Final = 3
"""How many wrong fields one error names; a body of thousands of topics may have as many."""


def decode(cls: type[B], data: bytes) -> B:
    """The body in ``data``; :class:`BodyError` says which field is missing or wrong."""
    return structure(cls, jsondialect.loads(data))


def encode(value: object, *, standard: bool = False) -> bytes:
    """The bytes of a body; ``standard`` is plain JSON, with integer keys in quotes."""
    return jsondialect.dumps(unstructure(value), standard=standard)


def structure(cls: type[B], value: Any) -> B:
    """As :func:`decode`, from a value that :func:`jsondialect.loads` returned."""
    try:
        return _converter.structure(value, cls)
    except (cattrs.BaseValidationError, ValueError) as error:
        if isinstance(error, cattrs.BaseValidationError):
            problems = cattrs.transform_error(error, cls.__name__, _describe)
        else:
            problems = [str(error)]
        more = len(problems) - _ERRORS_SHOWN
        shown = "; ".join(problems[:_ERRORS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise BodyError(f"{cls.__name__}: {shown}") from None


def unstructure(value: object) -> Any:
    """As :func:`encode`, to a value for :func:`jsondialect.dumps`."""
    return _converter.unstructure(value)


def _describe(error: BaseException, type_: type | None) -> str:
    if isinstance(error, KeyError):
        return "required field is missing"
    return str(error) or f"is no {type_}"


_converter: Final = cattrs.Converter()


def _make_structure(cls: type) -> Callable[[Any, Any], Any]:
    names = {field.name: override(rename=wire_name(field)) for field in attrs.fields(cls)}
    inner = make_dict_structure_fn(cls, _converter, **names)  # type: ignore[arg-type, var-annotated]
    hints = get_type_hints(cls)
    forms = {wire_name(field): _form(hints[field.name]) for field in attrs.fields(cls)}

    def structure_object(value: Any, type_: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"an object is needed, not {_shown(value)}")
        present = {}
        for key, item in value.items():
            form = forms.get(key)
            readable = item if form is None or item is None else form(key, item)
            if readable is not None:
                present[key] = readable
        return inner(present, type_)

    return structure_object


_Form: TypeAlias = Callable[[str, Any], Any]


def _form(hint: Any) -> _Form | None:
    """What has to be done with a field's JSON before it is read as this type; ``None`` is nothing."""
    for alternative in (hint, *get_args(hint)):
        origin = get_origin(alternative)
        if origin in (tuple, frozenset):
            return _check_list
        if origin is Mapping:
            return _check_map
        if isinstance(alternative, type) and issubclass(alternative, StrEnum):
            return _choice_of(alternative)
    return None


def _check_list(key: str, item: Any) -> Any:
    # Without the check a text would pass for a list of its letters.
    if not isinstance(item, list):
        raise ValueError(f"{key}: a list is needed, not {_shown(item)}")
    return item


def _check_map(key: str, item: Any) -> Any:
    if not isinstance(item, dict):
        raise ValueError(f"{key}: an object is needed, not {_shown(item)}")
    return {name: value for name, value in item.items() if value is not None}


def _choice_of(choices: type[StrEnum]) -> _Form:
    """As the peers read a name: in any case (the Go client writes ``Clustering``), and an unknown
    one as null.
    """
    by_name = {choice.value.lower(): choice for choice in choices}

    def find(key: str, item: Any) -> Any:
        if not isinstance(item, str):
            raise ValueError(f"{key}: a name is needed, not {_shown(item)}")
        return by_name.get(item.lower())

    return find


def _make_unstructure(cls: type) -> Callable[[Any], Any]:
    names = {field.name: override(rename=wire_name(field)) for field in attrs.fields(cls)}
    return make_dict_unstructure_fn(cls, _converter, **names)  # type: ignore[arg-type]


def _integer(value: Any, _: Any) -> int:
    if isinstance(value, str):
        digits = value[1:] if value[:1] in ("-", "+") else value
        if digits.isdecimal() and len(digits) <= 20:
            value = int(value)
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(f"a 64-bit integer is needed, not {_shown(value)}")
    return value


def _float(value: Any, _: Any) -> float:
    # The peers write a rate that is not a number as text, or as null.
    if type(value) in (int, float, str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise ValueError(f"a number is needed, not {_shown(value)}")


def _boolean(value: Any, _: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if type(value) is int and value in (0, 1):
        return value == 1
    raise ValueError(f"true or false is needed, not {_shown(value)}")


def _text(value: Any, _: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise ValueError(f"text is needed, not {_shown(value)}")


def _queue(value: Any, _: Any) -> MessageQueue:
    if isinstance(value, MessageQueue):
        return value
    if isinstance(value, dict):
        match value:
            case {"topic": str(topic), "brokerName": str(broker_name), "queueId": queue_id}:
                return MessageQueue(topic, broker_name, _integer(queue_id, int))
    raise ValueError(f"an object with topic, brokerName and queueId is needed, not {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


_converter.register_structure_hook_factory(attrs.has, _make_structure)
_converter.register_unstructure_hook_factory(attrs.has, _make_unstructure)
_converter.register_structure_hook(int, _integer)
_converter.register_structure_hook(float, _float)
_converter.register_structure_hook(bool, _boolean)
_converter.register_structure_hook(str, _text)
# Chosen by name before, with the other fields of its object.
_converter.register_structure_hook(StrEnum, lambda choice, _: choice)
_converter.register_structure_hook(MessageQueue, _queue)
# Stays what it is: the dialect writes it, as a value and as a key.
_converter.register_unstructure_hook(MessageQueue, lambda queue: queue)
