"""Changes of settings that administrators made while the broker ran, kept over a restart.

In: changes that :mod:`trio_mq.config.live` has checked, and the content of ``settingUpdates.json``. Out: the settings
of the process with them in force. Called by the processor of UPDATE_BROKER_CONFIG, by the broker that is made, and by
:mod:`trio_mq.broker.tables`. No IO. Source of the duty: Apache Configuration.update, which writes all settings over the
file that was given at the start.

Here that file stays as people wrote it. A change counts as long as the setting is given there (or on the command line,
or not at all) as it was when the change was made: whoever edits it later and starts anew gets what the edit says.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from trio_mq.broker.statejson import json_object, next_version
from trio_mq.config import Settings
from trio_mq.config.live import Change, change_of, put_in_force, shown
from trio_mq.errors import BodyError
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import DataVersion

log = logging.getLogger("trio_mq.broker.updates")


@attrs.frozen
class Update:
    """A setting's value that is in force, and the one that was given at the start, both as text."""

    value: str
    given: str


class SettingUpdates:
    """All changes in force."""

    def __init__(self) -> None:
        self.version = DataVersion()
        self._updates: dict[str, Update] = {}
        self._revision = 0

    def current(self) -> Mapping[str, Update]:
        """The changes by key."""
        return dict(self._updates)

    def make(self, settings: Settings, changes: Sequence[Change], now_ms: int) -> None:
        """Put checked changes in force and remember them."""
        for change in changes:
            known = self._updates.get(change.key)
            given = known.given if known is not None else shown(settings, change.info)
            if change.text == given:
                self._updates.pop(change.key, None)
            else:
                self._updates[change.key] = Update(change.text, given)
        put_in_force(settings, changes)
        self.version = next_version(self.version, now_ms)
        self._revision += 1

    def restore(self, settings: Settings) -> None:
        """After a start: put in force what still counts, and forget the rest."""
        for key, update in list(self._updates.items()):
            change = change_of(key, update.value)
            if change is None:
                told = "it cannot be made any more"
            elif (given := shown(settings, change.info)) != update.given:
                told = f"the settings given at this start say {given}, and said {update.given}"
            else:
                put_in_force(settings, [change])
                log.info("%s = %s, as set while the broker ran", key, update.value)
                continue
            log.warning("the change of %s to %s is forgotten: %s", key, update.value, told)
            del self._updates[key]
            self._revision += 1

    # -- the file settingUpdates.json

    @property
    def revision(self) -> int:
        """Grows with each change that has to be saved."""
        return self._revision

    def read_json(self, value: Any) -> None:
        """Take the changes of a file."""
        if not isinstance(value, dict):
            raise BodyError("settingUpdates.json is not an object")
        version = bodies.structure(DataVersion, value.get("dataVersion") or {})
        found = {}
        for key, item in json_object(value.get("updates"), "updates").items():
            fields = json_object(item, f"update of {key}")
            if not isinstance(fields.get("value"), str) or not isinstance(fields.get("given"), str):
                raise BodyError(f"the update of {key} lacks a text `value` or `given`")
            found[key] = Update(fields["value"], fields["given"])
        self._updates, self.version = found, version

    def to_json(self) -> Any:
        """The content of the file."""
        return {
            "dataVersion": bodies.unstructure(self.version),
            "updates": {key: attrs.asdict(update) for key, update in self._updates.items()},
        }
