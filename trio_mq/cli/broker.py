"""``trio-mq broker``: everything that a broker tells of itself, and its settings while it runs.

In: options. Out: lines or JSON on stdout. The work is done by :class:`trio_mq.Admin`; Apache's mqadmin has
brokerStatus, getBrokerConfig and updateBrokerConfig for it. ``trio-mq status`` needs no name server, and is quicker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trio_mq.cli.cluster import status_fields
from trio_mq.cli.online import CONNECTION, JSON, NOTHING, run_admin, tell
from trio_mq.cli.options import Option, Values
from trio_mq.cli.tables import print_json, print_pairs

if TYPE_CHECKING:
    from trio_mq.client.admin import Admin

BROKER: Final = Option("BROKER", "Its name, or HOST:PORT.")
SHOW: Final = (BROKER, JSON, *CONNECTION)
CONFIG: Final = (
    BROKER,
    Option(
        "KEY",
        "Print only this setting; KEY=VALUE changes it while the broker runs. [default: print all]",
        many=True,
        optional=True,
    ),
    JSON,
    *CONNECTION,
)


def show(values: Values) -> int:
    """Show what a broker tells of itself."""
    return run_admin(values, _show)


async def _show(admin: Admin, values: Values) -> int:
    found = await admin.broker_status(values["BROKER"][0])
    if "--json" in values:
        print_json({**status_fields(found), "table": dict(sorted(found.table.items()))})
    else:
        broker = found.broker
        print_pairs(
            [
                ("broker", broker.name),
                ("cluster", broker.cluster),
                ("address", broker.address),
                *sorted(found.table.items()),
            ]
        )
    return 0


def config(values: Values) -> int:
    """Show the settings that are in force at a broker, or change some; code 1 for a key that it does not show."""
    return run_admin(values, _config)


async def _config(admin: Admin, values: Values) -> int:
    broker = values["BROKER"][0]
    wanted: list[str] = []
    changes: dict[str, str] = {}
    for text in values.get("KEY", ()):
        key, sign, value = text.partition("=")
        wanted.append(key)
        if sign:
            changes[key] = value
    if changes:
        await admin.update_broker_config(broker, changes)
    found = await admin.broker_config(broker)
    missing = [key for key in wanted if key not in found]
    shown = {key: found[key] for key in wanted if key in found} if wanted else found
    if "--json" in values:
        print_json({"settings": shown})
    else:
        print_pairs(shown.items())
    for key in missing:
        tell(f"{broker} shows no setting {key}")
    return NOTHING if missing else 0
