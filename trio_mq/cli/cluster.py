"""``trio-mq cluster show``: all brokers, and how they are.

In: options. Out: a table or JSON on stdout. The work is done by :class:`trio_mq.Admin`; Apache's mqadmin has
clusterList for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trio_mq.cli import options
from trio_mq.cli.online import CONNECTION, JSON, failure_fields, report_failures, run_admin
from trio_mq.cli.options import Values
from trio_mq.cli.tables import print_json, print_table, time_field
from trio_mq.cli.topic import CLUSTER

if TYPE_CHECKING:
    from trio_mq.client.admin import Admin, BrokerStatus

SHOW: Final = (CLUSTER, JSON, *CONNECTION)


def show(values: Values) -> int:
    """Show the brokers of a cluster, their versions, rates and disks."""
    return run_admin(values, _show)


async def _show(admin: Admin, values: Values) -> int:
    found = await admin.cluster_status(options.last(values, "--cluster"))
    if "--json" in values:
        print_json(
            {
                "brokers": [status_fields(status) for status in found],
                "failures": failure_fields(found.failures),
            }
        )
    else:
        heads = ("cluster", "broker", "id", "address", "version", "in per s", "out per s",
                 "in today", "out today", "disk", "started")  # fmt: skip
        print_table(heads, [_row(status) for status in found])
    return report_failures(found.failures)


def _row(status: BrokerStatus) -> tuple[object, ...]:
    broker = status.broker
    return (
        broker.cluster, broker.name, broker.broker_id, broker.address, status.version, status.put_tps,
        status.get_tps, status.put_today, status.get_today, f"{status.disk_ratio:.0%}", status.boot_at,
    )  # fmt: skip


def status_fields(status: BrokerStatus) -> dict[str, object]:
    """The figures of a broker for JSON."""
    broker = status.broker
    return {
        "cluster": broker.cluster,
        "brokerName": broker.name,
        "brokerId": broker.broker_id,
        "address": broker.address,
        "version": status.version,
        "putTps": status.put_tps,
        "getTps": status.get_tps,
        "putToday": status.put_today,
        "getToday": status.get_today,
        "diskRatio": status.disk_ratio,
        "bootTimestamp": time_field(status.boot_at),
    }
