"""What a verb of the command line is, and the verbs that talk to a cluster.

In: the modules of the verbs. Out: tables. Called by :mod:`trio_mq.cli.app`, which runs a plain line without typer, and
by :mod:`trio_mq.cli.tree`. Loading this loads no client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from trio_mq.cli import broker, cluster, consume, group, message, send, topic
from trio_mq.cli.options import Option, Values


@attrs.frozen
class Verb:
    """A command by its `path` (``config show``); `run` gets what was given and returns the exit code.

    With `own_codes` the codes 0 to 3 say what was found, and a wrong command line ends with
    :data:`trio_mq.cli.tree.USAGE`.
    """

    path: str
    run: Callable[[Values], int]
    table: Sequence[Option]
    own_codes: bool = False


CLUSTER = (
    Verb("send", send.send, send.SEND),
    Verb("consume", consume.consume, consume.CONSUME),
    Verb("topic list", topic.list_, topic.LIST),
    Verb("topic create", topic.create, topic.CREATE),
    Verb("topic update", topic.update, topic.UPDATE),
    Verb("topic delete", topic.delete, topic.DELETE),
    Verb("topic show", topic.show, topic.SHOW),
    Verb("topic stats", topic.stats, topic.STATS),
    Verb("group list", group.list_, group.LIST),
    Verb("group create", group.create, group.CREATE),
    Verb("group update", group.update, group.UPDATE),
    Verb("group delete", group.delete, group.DELETE),
    Verb("group show", group.show, group.SHOW),
    Verb("group progress", group.progress, group.PROGRESS),
    Verb("group reset", group.reset, group.RESET),
    Verb("group clone", group.clone, group.CLONE),
    Verb("cluster show", cluster.show, cluster.SHOW),
    Verb("broker show", broker.show, broker.SHOW),
    Verb("broker config", broker.config, broker.CONFIG),
    Verb("message get", message.get, message.GET),
    Verb("message find", message.find, message.FIND),
)


def find(words: Sequence[str]) -> tuple[Verb, list[str]] | None:
    """The verb that a command line begins with, and the rest of the line."""
    for verb in CLUSTER:
        path = verb.path.split()
        if list(words[: len(path)]) == path:
            return verb, list(words[len(path) :])
    return None
