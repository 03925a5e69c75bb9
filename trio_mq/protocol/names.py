"""Names of fields on the wire: camelCase of ours, unless a field says otherwise.

In: attrs fields. Out: their wire names. Used by :mod:`.headers` and :mod:`.bodies`, so that both
follow one rule.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

_KEY: Final = "wire"


def wire(name: str, default: Any = attrs.NOTHING) -> Any:
    """An attrs field whose name on the wire is not the camelCase of ours (``clientID``)."""
    return attrs.field(default=default, metadata={_KEY: name})


def wire_name(field: attrs.Attribute[Any]) -> str:
    """The name that a field has on the wire."""
    given: str | None = field.metadata.get(_KEY)
    return camel(field.name) if given is None else given


def camel(name: str) -> str:
    """``queue_id`` to ``queueId``."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)
