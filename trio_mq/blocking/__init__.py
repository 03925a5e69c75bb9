"""The client for plain threads: the API of :mod:`trio_mq` with ``with`` and ``for``, and without ``await``.

In and out: as in :mod:`trio_mq`; messages, receipts and errors are the same classes. Only what is consumed, and so has
to be settled, is a :class:`.ReceivedMessage` of this package; answers to requests and messages that an administrator
looks up are those of :mod:`trio_mq`. Each client runs in one thread of its own, which ends with its ``with`` block; see
:mod:`.twin`.
"""

from __future__ import annotations

from trio_mq.blocking.admin import Admin, Reading
from trio_mq.blocking.consumer import Consumer
from trio_mq.blocking.messages import PoppedMessage, ReceivedMessage
from trio_mq.blocking.pipeline import PendingSend, Pipeline
from trio_mq.blocking.producer import Producer
from trio_mq.blocking.pullconsumer import PullConsumer
from trio_mq.blocking.simple import SimpleConsumer

__all__ = [
    "Admin",
    "Consumer",
    "PendingSend",
    "Pipeline",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "Reading",
    "ReceivedMessage",
    "SimpleConsumer",
]
