"""``trio-mq group``: list, create, update, delete, show, progress, reset, clone.

In: options. Out: a table, lines or JSON on stdout. The work is done by :class:`trio_mq.Admin`; the verbs of Apache's
mqadmin for it are updateSubGroup, deleteSubGroup, consumerConnection, consumerProgress, resetOffsetByTime and
cloneGroupOffset.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from trio_mq.cli import options, places
from trio_mq.cli.online import (
    CONNECTION,
    JSON,
    failure_fields,
    given,
    number,
    pairs,
    refuse,
    report_failures,
    run_admin,
)
from trio_mq.cli.options import Option, Values
from trio_mq.cli.tables import print_json, print_lines, print_pairs, print_table, time_field
from trio_mq.cli.topic import BROKER, CLUSTER

if TYPE_CHECKING:
    from trio_mq.client.admin import Admin, GroupMembers
    from trio_mq.protocol.bodies import MessageQueue, SubscriptionGroupConfig

GROUP: Final = Option("GROUP", "Name of the consumer group.")
TOPIC: Final = Option("--topic", "The topic.", "TOPIC")
_WORDS: Final = ("yes", "no")
_CHANGES: Final = (
    Option(
        "--retry-max-times",
        "Failures that make a message a dead letter. [default of a new one: 16]",
        "N",
    ),
    Option("--retry-queues", "Queues of its retry topic. [default of a new one: 1]", "N"),
    Option(
        "--consume", "Whether it may consume. [default of a new one: yes]", "yes|no", words=_WORDS
    ),
    Option(
        "--broadcast",
        "Whether it may broadcast. [default of a new one: yes]",
        "yes|no",
        words=_WORDS,
    ),
    Option(
        "--orderly",
        "Whether it pops in order. [default of a new one: no]",
        "yes|no",
        words=_WORDS,
    ),
    CLUSTER,
    BROKER,
    JSON,
    *CONNECTION,
)
LIST: Final = (
    CLUSTER,
    Option("--all", "Also those that brokers make for themselves."),
    JSON,
    *CONNECTION,
)
CREATE: Final = (
    GROUP,
    *_CHANGES,
    Option("--attribute", "Can be given several times.", "KEY=VALUE", many=True),
)
UPDATE: Final = (GROUP, *_CHANGES)
DELETE: Final = (
    GROUP,
    CLUSTER,
    Option("--keep-offsets", "A group of that name goes on where this one was."),
    *CONNECTION,
)
SHOW: Final = (GROUP, JSON, *CONNECTION)
PROGRESS: Final = (
    GROUP,
    Option("--topic", "Only this topic. [default: all, its retry topics too]", "TOPIC"),
    JSON,
    *CONNECTION,
)
RESET: Final = (
    GROUP,
    TOPIC,
    Option("--to", f"Where to: {places.PLACES}; an offset needs --queue.", "PLACE"),
    Option("--queue", "Only this queue. [default: all]", "BROKER:ID"),
    JSON,
    *CONNECTION,
)
CLONE: Final = (
    Option("SOURCE", "The group whose offsets are taken."),
    Option("DESTINATION", "The group that gets them; it has to exist, and to be offline."),
    TOPIC,
    JSON,
    *CONNECTION,
)


def list_(values: Values) -> int:
    """List the consumer groups of a cluster."""
    return run_admin(values, _list)


async def _list(admin: Admin, values: Values) -> int:
    cluster = options.last(values, "--cluster")
    found = await admin.groups(cluster=cluster, internal="--all" in values)
    if "--json" in values:
        print_json({"groups": list(found), "failures": failure_fields(found.failures)})
    else:
        print_lines(found)
    return report_failures(found.failures)


def create(values: Values) -> int:
    """Create a consumer group on all masters, or set an existing one to these values."""
    return run_admin(values, _create)


async def _create(admin: Admin, values: Values) -> int:
    attributes = pairs(values, "--attribute") or None
    config = await admin.create_group(
        values["GROUP"][0], **given(attributes=attributes, **_common(values))
    )
    if "--json" in values:
        print_json(config_fields(config))
    else:
        print_pairs([("group", config.group_name), *_config_pairs(config)])
    return 0


def update(values: Values) -> int:
    """Change what is given of a group, and leave the rest as it is."""
    return run_admin(values, _update)


async def _update(admin: Admin, values: Values) -> int:
    found = await admin.update_group(values["GROUP"][0], **given(**_common(values)))
    if "--json" in values:
        configs = {name: config_fields(config) for name, config in found.items()}
        print_json({"brokers": configs, "failures": failure_fields(found.failures)})
    else:
        _print_configs(found)
    return report_failures(found.failures)


def _common(values: Values) -> dict[str, Any]:
    if "--cluster" in values and "--broker" in values:
        refuse("--cluster and --broker: give one of them")
    return {
        "retry_max_times": number(values, "--retry-max-times"),
        "retry_queues": number(values, "--retry-queues"),
        "consume_enable": _yes(values, "--consume"),
        "consume_broadcast_enable": _yes(values, "--broadcast"),
        "consume_message_orderly": _yes(values, "--orderly"),
        "cluster": options.last(values, "--cluster"),
        "broker": options.last(values, "--broker"),
    }


def _yes(values: Values, option: str) -> bool | None:
    word = options.word(values, option, UPDATE)
    return None if word is None else word == "yes"


def delete(values: Values) -> int:
    """Delete a group, its retry topic and its dead letters. One that is not there is no error."""
    return run_admin(values, _delete)


async def _delete(admin: Admin, values: Values) -> int:
    await admin.delete_group(
        values["GROUP"][0],
        delete_offsets="--keep-offsets" not in values,
        cluster=options.last(values, "--cluster"),
    )
    return 0


def show(values: Values) -> int:
    """Show the settings of a group on each broker, who is connected, and what they subscribe."""
    return run_admin(values, _show)


async def _show(admin: Admin, values: Values) -> int:
    group = values["GROUP"][0]
    configs = await admin.group_config(group)
    members = await admin.consumers(group)
    topics = await admin.topics_of(group)
    every = (*configs.failures, *members.failures, *topics.failures)
    failures = {failure.address: failure for failure in every}
    if "--json" in values:
        fields = {
            "group": group,
            "brokers": {name: config_fields(config) for name, config in configs.items()},
            **members_fields(members),
            "topics": list(topics),
            "failures": failure_fields(failures.values()),
        }
        print_json(fields)
    else:
        _print_configs(configs)
        _print_members(members)
        print_pairs([("topics", ", ".join(topics))])
    return report_failures(failures.values())


def members_fields(members: GroupMembers) -> dict[str, object]:
    """In the peers' names."""
    return {
        "connectionSet": [
            {
                "clientId": member.client_id,
                "clientAddr": member.address,
                "language": member.language,
                "version": member.version,
            }
            for member in members.members
        ],
        "consumeType": members.consume_type,
        "messageModel": members.message_model,
        "consumeFromWhere": members.from_where,
        "subscriptions": {
            topic: {"expression": found.sub_string, "expressionType": found.expression_type}
            for topic, found in sorted(members.subscriptions.items())
        },
    }


def _print_members(members: GroupMembers) -> None:
    if not members.online:
        print_pairs([("online", False)])
        return
    print_pairs([("online", True), ("model", members.message_model), ("from", members.from_where)])
    print_table(
        ("client", "address", "language", "version"),
        [(m.client_id, m.address, m.language, m.version) for m in members.members],
    )
    print_table(
        ("topic", "expression", "type"),
        [
            (topic, found.sub_string, found.expression_type)
            for topic, found in sorted(members.subscriptions.items())
        ],
    )


def progress(values: Values) -> int:
    """Show how far a group is in each queue, and how many messages wait."""
    return run_admin(values, _progress)


async def _progress(admin: Admin, values: Values) -> int:
    found = await admin.progress(values["GROUP"][0], options.last(values, "--topic"))
    if "--json" in values:
        fields = {
            "group": found.group,
            "lag": found.lag,
            "consumeTps": round(found.consume_tps, 3),
            "queues": [
                {
                    "topic": queue.topic,
                    "brokerName": queue.broker_name,
                    "queueId": queue.queue_id,
                    "brokerOffset": at.broker_offset,
                    "consumerOffset": at.consumer_offset,
                    "pullOffset": at.pull_offset,
                    "lastTimestamp": time_field(at.last_consumed_at),
                    "lag": at.lag,
                }
                for queue, at in found.queues.items()
            ],
            "failures": failure_fields(found.failures),
        }
        print_json(fields)
    else:
        print_table(
            (
                "topic",
                "broker",
                "queue",
                "broker offset",
                "consumer offset",
                "lag",
                "last consumed",
            ),
            [
                (
                    queue.topic,
                    queue.broker_name,
                    queue.queue_id,
                    at.broker_offset,
                    at.consumer_offset,
                    at.lag,
                    at.last_consumed_at,
                )
                for queue, at in found.queues.items()
            ],
        )
        print_pairs([("lag", found.lag), ("consumed per s", found.consume_tps)])
    return report_failures(found.failures)


def reset(values: Values) -> int:
    """Move a group to another place in a topic, whether it is online or not."""
    return run_admin(values, _reset)


async def _reset(admin: Admin, values: Values) -> int:
    topic = _topic(values)
    where = options.last(values, "--to")
    if where is None:
        refuse(f"--to is missing; write {places.PLACES}")
    to = places.place("--to", where, datetime.now(UTC))
    text = options.last(values, "--queue")
    queue = None if text is None else places.queue("--queue", text, topic)
    if isinstance(to, int) and queue is None:
        refuse(f"--to {where} is an offset in one queue: say which with --queue BROKER:ID")
    found = await admin.reset_offsets(values["GROUP"][0], topic, to, queue=queue)
    _print_offsets(values, found)
    return 0


def clone(values: Values) -> int:
    """Put one group where another one is in a topic."""
    return run_admin(values, _clone)


async def _clone(admin: Admin, values: Values) -> int:
    topic = _topic(values)
    found = await admin.clone_offsets(values["SOURCE"][0], values["DESTINATION"][0], topic)
    _print_offsets(values, found)
    return 0


def _topic(values: Values) -> str:
    topic = options.last(values, "--topic")
    if topic is None:
        refuse("--topic is missing: in which topic?")
    return topic


def _print_offsets(values: Values, found: Mapping[MessageQueue, int]) -> None:
    if "--json" in values:
        queues = [
            {
                "topic": queue.topic,
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "offset": offset,
            }
            for queue, offset in found.items()
        ]
        print_json({"queues": queues})
    else:
        print_table(
            ("broker", "queue", "offset"),
            [(queue.broker_name, queue.queue_id, offset) for queue, offset in found.items()],
        )


# -- settings of a group


def config_fields(config: SubscriptionGroupConfig) -> dict[str, Any]:
    """In the peers' names."""
    from trio_mq.protocol import bodies

    fields: dict[str, Any] = bodies.unstructure(config)
    return fields


def _config_pairs(config: SubscriptionGroupConfig) -> list[tuple[str, object]]:
    return [
        ("retry max times", config.retry_max_times),
        ("retry queues", config.retry_queue_nums),
        ("consume", config.consume_enable),
        ("broadcast", config.consume_broadcast_enable),
        ("orderly", config.consume_message_orderly),
        ("attributes", config.attributes),
    ]


def _print_configs(configs: Mapping[str, SubscriptionGroupConfig]) -> None:
    rows = [
        [name, *(value for _, value in _config_pairs(config))] for name, config in configs.items()
    ]
    heads = [name for name, _ in _config_pairs(next(iter(configs.values())))]
    print_table(["broker", *heads], rows)
