"""Names of a package that are loaded when they are first used.

In: a table of modules and the public names in each. Out: ``__getattr__`` and ``__dir__`` of the package. Used by
packages with many classes of which a process needs some: making one costs a tenth of a millisecond, and a client is to
be imported in a blink. Type checkers see ordinary imports, which stand beside the table under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of `package`; `modules` maps its modules to their public names, with blanks."""
    homes = {name: module for module, words in modules.items() for name in words.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, listed
