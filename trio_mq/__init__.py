"""trio-mq: a message broker on Trio that speaks Apache RocketMQ.

The package root holds the public names of the client API and nothing else; the broker is started with
``trio-mq serve`` (see :mod:`trio_mq.cli`).
"""

__version__ = "0.1.0"
