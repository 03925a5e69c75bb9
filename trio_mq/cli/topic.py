"""``trio-mq topic``: list, create, update, delete, show, stats.

In: options. Out: a table, lines or JSON on stdout. The work is done by :class:`trio_mq.Admin`; the verbs of Apache's
mqadmin for it are topicList, updateTopic, deleteTopic, topicRoute and topicStatus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trio_mq.cli import options
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

if TYPE_CHECKING:
    from trio_mq.client.admin import Admin
    from trio_mq.protocol.bodies import TopicConfig

TOPIC: Final = Option("TOPIC", "Name of the topic.")
CLUSTER: Final = Option("--cluster", "Only this cluster. [default: all]", "NAME")
BROKER: Final = Option("--broker", "Only this broker, and not all masters.", "NAME|HOST:PORT")
_PERMISSIONS: Final = ("rw", "r", "w")
_CHANGES: Final = (
    Option("--read-queues", "Queues on each broker that consumers see.", "N"),
    Option("--write-queues", "Queues on each broker that producers see.", "N"),
    Option(
        "--permission",
        "What clients may do with it. [default of a new one: rw]",
        "|".join(_PERMISSIONS),
        words=_PERMISSIONS,
    ),
    Option("--order", "Producers keep to the same queues while a broker is away."),
    Option(
        "--attribute",
        "Say message.type=FIFO; can be given several times.",
        "KEY=VALUE",
        many=True,
    ),
    CLUSTER,
    BROKER,
    JSON,
    *CONNECTION,
)
LIST: Final = (
    CLUSTER,
    Option("--all", "Also those that brokers make for themselves and for groups."),
    JSON,
    *CONNECTION,
)
CREATE: Final = (
    TOPIC,
    Option("--queues", "Queues on each broker, for reading and writing. [default: 8]", "N"),
    *_CHANGES,
)
UPDATE: Final = (
    TOPIC,
    *_CHANGES,
    Option("--no-order", "The opposite of --order."),
    Option("--remove-attribute", "Take one away; can be given several times.", "KEY", many=True),
)
DELETE: Final = (TOPIC, CLUSTER, *CONNECTION)
SHOW: Final = (TOPIC, JSON, *CONNECTION)
STATS: Final = (TOPIC, JSON, *CONNECTION)


def list_(values: Values) -> int:
    """List the topics of a cluster."""
    return run_admin(values, _list)


async def _list(admin: Admin, values: Values) -> int:
    cluster = options.last(values, "--cluster")
    found = await admin.topics(cluster=cluster, internal="--all" in values)
    if "--json" in values:
        print_json({"topics": list(found)})
    else:
        print_lines(found)
    return 0


def create(values: Values) -> int:
    """Create a topic on all masters, or set an existing one to these values."""
    return run_admin(values, _create)


async def _create(admin: Admin, values: Values) -> int:
    config = await admin.create_topic(
        values["TOPIC"][0],
        **given(
            queues=number(values, "--queues", least=1),
            order=True if "--order" in values else None,
            attributes=pairs(values, "--attribute"),
            **_common(values),
        ),
    )
    if "--json" in values:
        print_json(config_fields(config))
    else:
        print_pairs(_config_pairs(config))
    return 0


def update(values: Values) -> int:
    """Change what is given of a topic, and leave the rest as it is."""
    return run_admin(values, _update)


async def _update(admin: Admin, values: Values) -> int:
    if "--order" in values and "--no-order" in values:
        refuse("--order and --no-order: give one of them")
    order = True if "--order" in values else False if "--no-order" in values else None
    attributes: dict[str, str | None] = dict(pairs(values, "--attribute"))
    attributes |= dict.fromkeys(values.get("--remove-attribute", ()))
    found = await admin.update_topic(
        values["TOPIC"][0],
        **given(order=order, attributes=attributes or None, **_common(values)),
    )
    if "--json" in values:
        configs = {name: config_fields(config) for name, config in found.items()}
        print_json({"brokers": configs, "failures": failure_fields(found.failures)})
    else:
        _print_configs(dict(found))
    return report_failures(found.failures)


def _common(values: Values) -> dict[str, Any]:
    if "--cluster" in values and "--broker" in values:
        refuse("--cluster and --broker: give one of them")
    return {
        "read_queues": number(values, "--read-queues"),
        "write_queues": number(values, "--write-queues"),
        "permission": options.word(values, "--permission", CREATE),
        "cluster": options.last(values, "--cluster"),
        "broker": options.last(values, "--broker"),
    }


def delete(values: Values) -> int:
    """Delete a topic with its messages. One that is not there is no error."""
    return run_admin(values, _delete)


async def _delete(admin: Admin, values: Values) -> int:
    await admin.delete_topic(values["TOPIC"][0], cluster=options.last(values, "--cluster"))
    return 0


def show(values: Values) -> int:
    """Show where a topic is, its settings on each broker, and the groups that consume it."""
    return run_admin(values, _show)


async def _show(admin: Admin, values: Values) -> int:
    topic = values["TOPIC"][0]
    route = await admin.topic_route(topic)
    configs = await admin.topic_config(topic)
    groups = await admin.groups_of(topic)
    failures = {failure.address: failure for failure in (*configs.failures, *groups.failures)}
    addresses = {
        name: {str(broker_id): str(address) for broker_id, address in by_id.items()}
        for name, by_id in sorted(route.brokers.items())
    }
    if "--json" in values:
        fields: dict[str, object] = {
            "topic": topic,
            "brokers": {
                name: {
                    "addresses": by_id,
                    "config": config_fields(configs[name]) if name in configs else None,
                }
                for name, by_id in addresses.items()
            },
            "groups": list(groups),
            "failures": failure_fields(failures.values()),
        }
        print_json(fields)
    else:
        _print_configs(
            dict(configs), {name: ", ".join(a.values()) for name, a in addresses.items()}
        )
        print_pairs([("groups", ", ".join(groups))])
    return report_failures(failures.values())


def stats(values: Values) -> int:
    """Show what the queues of a topic hold."""
    return run_admin(values, _stats)


async def _stats(admin: Admin, values: Values) -> int:
    found = await admin.topic_stats(values["TOPIC"][0])
    if "--json" in values:
        fields = {
            "topic": found.topic,
            "messages": found.messages,
            "putTps": round(found.put_tps, 3),
            "queues": [
                {
                    "brokerName": queue.broker_name,
                    "queueId": queue.queue_id,
                    "minOffset": at.min_offset,
                    "maxOffset": at.max_offset,
                    "lastUpdateTimestamp": time_field(at.last_stored_at),
                }
                for queue, at in found.queues.items()
            ],
            "failures": failure_fields(found.failures),
        }
        print_json(fields)
    else:
        print_table(
            ("broker", "queue", "min offset", "max offset", "messages", "last stored"),
            (
                (
                    queue.broker_name,
                    queue.queue_id,
                    at.min_offset,
                    at.max_offset,
                    at.messages,
                    at.last_stored_at,
                )
                for queue, at in found.queues.items()
            ),
        )
        print_pairs([("messages", found.messages), ("stored per s", found.put_tps)])
    return report_failures(found.failures)


# -- settings of a topic


def config_fields(config: TopicConfig) -> dict[str, Any]:
    """In the peers' names."""
    from trio_mq.protocol import bodies

    fields: dict[str, Any] = bodies.unstructure(config)
    return fields


def permission_text(perm: int) -> str:
    """``rw``, as options have it; other bits as a number."""
    letters = ("r" if perm & 4 else "") + ("w" if perm & 2 else "")
    return (
        letters if perm == (4 * ("r" in letters) + 2 * ("w" in letters)) else f"{letters}({perm})"
    )


def _config_pairs(config: TopicConfig) -> list[tuple[str, object]]:
    return [
        ("topic", config.topic_name),
        ("read queues", config.read_queue_nums),
        ("write queues", config.write_queue_nums),
        ("permission", permission_text(config.perm)),
        ("order", config.order),
        ("attributes", config.attributes),
    ]


def _print_configs(
    configs: dict[str, TopicConfig], addresses: dict[str, str] | None = None
) -> None:
    rows = []
    for name in addresses or configs:
        config = configs.get(name)
        cells: list[object] = [None] * 5
        if config is not None:
            cells = [value for _, value in _config_pairs(config)[1:]]
        rows.append([name, *([addresses[name]] if addresses else []), *cells])
    heads = ["broker", *(["address"] if addresses else [])]
    print_table([*heads, "read queues", "write queues", "permission", "order", "attributes"], rows)
