"""How a setting is declared: the field of a frozen class that also knows its key, its values and
its meaning.

Called by the modules of this package that declare settings; read back by
:mod:`trio_mq.config.loading`, ``config show`` and the generator of the reference page.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import attrs

from trio_mq.config.kinds import Kind

T = TypeVar("T")
MARK: Final = "trio_mq.setting"


@attrs.frozen
class SettingMeta:
    """What a file, a command line and the reference page know about a setting."""

    key: str
    kind: Kind[Any]
    doc: str
    aliases: tuple[str, ...]
    default_text: str | None
    environment: str | None


def setting(
    key: str,
    kind: Kind[T],
    default: T,
    doc: str,
    *,
    aliases: tuple[str, ...] = (),
    default_text: str | None = None,
    environment: str | None = None,
) -> T:
    """Declare a field: `key` is Apache's name, or one of ours in the same style where Apache has
    none. A variable of the `environment` says what holds where no file and no option does.
    """
    meta = SettingMeta(key, kind, doc, aliases, default_text, environment)
    return attrs.field(default=default, metadata={MARK: meta})
