"""Writes docs/reference/client-api.md: every public name of the client, from signatures and docstrings.

In: ``trio_mq.__all__`` and what each name is. Out: one Markdown page. Run by ``just docs``; with ``--check`` it writes
nothing and fails when the page is stale, as a test does too.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

import attrs

import trio_mq

PAGE: Final = Path(__file__).resolve().parent / "reference" / "client-api.md"
NOTE: Final = "<!-- Written by docs/generate_api.py (`just docs`); do not edit. -->"
HEAD: Final = """\
# Client API

Every name here is imported from `trio_mq`. The same clients without `await`, for plain threads, are in
`trio_mq.blocking`. Arguments whose names end in `_s` are seconds, times are aware `datetime` values in UTC.
"""
ERRORS: Final = """\
## Errors

All of them are `trio_mq.TrioMQError`; what command line tools make of them is on the page of
[exit codes](exit-codes.md).
"""
#: Applications get these and do not make them.
HANDED_OUT: Final = {"ReceivedMessage", "SendReceipt", "TransactionReceipt"}
_LONGEST_LINE: Final = 100


def main() -> int:
    """Write the page, or with ``--check`` compare it; the exit code of the script."""
    text = page()
    if "--check" in sys.argv[1:]:
        stale = not PAGE.exists() or PAGE.read_text("utf-8") != text
        if stale:
            sys.stderr.write(f"{PAGE.name} is stale; run: python docs/generate_api.py\n")
        return int(stale)
    PAGE.write_text(text, "utf-8")
    return 0


def page() -> str:
    """The page as it should be."""
    names = [name for name in trio_mq.__all__ if not name.startswith("_")]
    things = {name: getattr(trio_mq, name) for name in names}
    errors = {name: thing for name, thing in things.items() if _is_error(thing)}
    lines = [NOTE, "", HEAD]
    for name, thing in things.items():
        if name not in errors:
            lines += section(name, thing)
    lines.append(ERRORS)
    for name, thing in sorted(errors.items(), key=lambda item: item[1].__mro__[::-1].__repr__()):
        parent = thing.__mro__[1].__name__
        lines += [f"### {name}", "", f"A kind of `{parent}`. {prose(thing)}", ""]
    return "\n".join(lines).rstrip() + "\n"


def section(name: str, thing: Any) -> Iterator[str]:
    """One public name: what it is, how it is made, and what it can do."""
    yield f"## {name}"
    yield ""
    if inspect.isclass(thing) and issubclass(thing, Enum):
        yield prose(thing)
        yield ""
        yield ", ".join(f"`{name}.{member.name}`" for member in thing) + "."
    elif inspect.isclass(thing):
        if name not in HANDED_OUT:
            yield from code(f"{name}{signature(thing)}")
        yield prose(thing)
        if name in HANDED_OUT and attrs.has(thing):
            yield ""
            yield "Fields: " + ", ".join(
                f"`{field.name}: {annotation(field.type)}`" for field in attrs.fields(thing)
            ) + "."  # fmt: skip
        for attribute, value in members(thing):
            yield ""
            yield from member(attribute, value)
    elif callable(thing):
        how = "async " if inspect.iscoroutinefunction(thing) else ""
        yield from code(f"{how}{name}{signature(thing)}")
        yield prose(thing)
    else:
        yield f"`{thing!r}`"
    yield ""


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, in the order of the source, inherited ones of ours first."""
    seen: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("trio_mq"):
            own = vars(base).items()
            seen |= {n: v for n, v in own if not n.startswith("_") and _is_documented(v)}
    yield from seen.items()


def _is_documented(value: Any) -> bool:
    if isinstance(value, property):
        return bool(value.__doc__)
    return inspect.isfunction(value) and bool(value.__doc__)  # no other ways to make one


def member(name: str, value: Any) -> Iterator[str]:
    """A method or property of a class."""
    if isinstance(value, property):
        yield f"**`{name}`**: {prose(value)}"
        return
    how = "await " if inspect.iscoroutinefunction(value) else ""
    yield from code(f"{how}{name}{signature(value)}")
    yield prose(value)


def code(text: str) -> Iterator[str]:
    """A signature, one argument on each line when it is long."""
    if len(text) > _LONGEST_LINE:
        name, _, rest = text.partition("(")
        arguments, _, result = rest.rpartition(")")
        text = f"{name}(\n" + "".join(f"    {each},\n" for each in _split(arguments)) + f"){result}"
    yield "```text"
    yield text
    yield "```"
    yield ""


def _split(arguments: str) -> list[str]:
    """At the commas that are not inside brackets."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def signature(thing: Any) -> str:
    """As it is written in the source, without `self`."""
    found = inspect.signature(thing)
    parts, kind = [], None
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and kind is not parameter.KEYWORD_ONLY:
            parts.append("*")
        kind = parameter.kind
        default = parameter.default
        text = f"{parameter.name}: {annotation(parameter.annotation)}"
        parts.append(text if default is parameter.empty else f"{text} = {shown(default)}")
    result = "" if inspect.isclass(thing) else f" -> {annotation(found.return_annotation)}"
    return f"({', '.join(parts)}){result}"


def annotation(value: Any) -> str:
    """A type as the source has it."""
    return value if isinstance(value, str) else getattr(value, "__name__", str(value))


def shown(default: Any) -> str:
    """A default value; `...` for one that is made anew each time."""
    if isinstance(default, Enum):
        return f"{type(default).__name__}.{default.name}"
    if inspect.isfunction(default) or inspect.isclass(default):
        return default.__name__
    if default is attrs.NOTHING or "object at" in repr(default) or "factory" in repr(default):
        return "..."
    return repr(default).replace("'", '"')


def prose(thing: Any) -> str:
    """A docstring as Markdown."""
    text = inspect.cleandoc(thing.__doc__ or "")
    text = re.sub(r":\w+:`[~.]*(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, Exception)


if __name__ == "__main__":
    sys.exit(main())
