"""How consumers of a group read a topic: by pulls, or by pops that several of them share queues for.

In: SET_MESSAGE_REQUEST_MODE from administrators, the content of ``messageRequestMode.json``. Out: the mode of a group
in a topic. Called by the assignment processor and by :mod:`trio_mq.broker.tables`. Format of the file:
``docs/reference/state-files.md``. Rules: Apache MessageRequestModeManager, QueryAssignmentProcessor.
"""

from __future__ import annotations

from typing import Any

import attrs

from trio_mq.broker.statejson import json_object
from trio_mq.errors import BodyError
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import SetMessageRequestModeBody

PULL, POP = "PULL", "POP"
_TABLE = "messageRequestModeMap"


class RequestModes:
    """Modes by topic and group, as far as somebody has set them."""

    def __init__(self) -> None:
        self._modes: dict[str, dict[str, SetMessageRequestModeBody]] = {}
        self._revision = 0
        self._unknown_of_file: dict[str, Any] = {}

    def get(self, topic: str, group: str) -> SetMessageRequestModeBody | None:
        """What was set for a group in a topic."""
        return self._modes.get(topic, {}).get(group)

    def set_mode(self, mode: SetMessageRequestModeBody) -> None:
        """Set the mode of a group in a topic."""
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._revision += 1

    # -- the master's table, and the file messageRequestMode.json

    def take_over(self, value: Any) -> bool:
        """Have what the master says, given its answer, and nothing else; whether that is something new.

        :class:`BodyError`, and no change, if it is no such table.
        """
        modes = _parsed(value)
        if modes == self._modes:
            return False
        self._modes = modes
        self._revision += 1
        return True

    @property
    def revision(self) -> int:
        """Grows with each change that has to be saved."""
        return self._revision

    def read_json(self, value: Any) -> None:
        """Take the modes of a file. The keys are the names, whatever an item itself says."""
        self._modes = _parsed(value)
        self._unknown_of_file = {key: item for key, item in value.items() if key != _TABLE}

    def to_json(self) -> Any:
        """The content of the file, and of the answer to peers; fields of the file itself that we do not know stay."""
        table = {
            topic: {group: bodies.unstructure(mode) for group, mode in groups.items()}
            for topic, groups in self._modes.items()
        }
        return {**self._unknown_of_file, _TABLE: table}


def _parsed(value: Any) -> dict[str, dict[str, SetMessageRequestModeBody]]:
    """Modes by topic and group, of a file or of a master's answer."""
    if not isinstance(value, dict):
        raise BodyError("messageRequestMode.json is not an object")
    found: dict[str, dict[str, SetMessageRequestModeBody]] = {}
    for topic, groups in json_object(value.get(_TABLE), _TABLE).items():
        for group, item in json_object(groups, topic).items():
            fields = {
                **json_object(item, f"{topic}, {group}"),
                "topic": topic,
                "consumerGroup": group,
            }
            mode = bodies.structure(SetMessageRequestModeBody, fields)
            found.setdefault(topic, {})[group] = checked(mode)
    return found


def checked(mode: SetMessageRequestModeBody) -> SetMessageRequestModeBody:
    """The mode with its name as the peers write it; :class:`BodyError` for one that nobody knows."""
    name = mode.mode.upper()
    if name not in (PULL, POP):
        raise BodyError(f"message request mode {mode.mode!r} of {mode.topic}: PULL or POP")
    return attrs.evolve(mode, mode=name)
