"""The Python client: producers, consumers and administration of any RocketMQ cluster, on Trio and asyncio.

In: addresses of name servers, messages, subscriptions. Out: receipts, messages, typed results, and errors of the one
tree in :mod:`trio_mq.errors`. Its public names are those of the package root; :mod:`trio_mq.blocking` has the same
API for plain threads. Everything here is written on anyio over the sans-IO core in :mod:`trio_mq.protocol`, and owns
its tasks: see :mod:`.lifetime`. Source of the rules: Apache's client module, as ``docs/explanation/client.md`` tells.
"""
