"""trio-mq: a message broker on Trio that speaks Apache RocketMQ, and a client for any RocketMQ cluster.

The package root holds the public names of the client API and nothing else; :mod:`trio_mq.blocking` has the same API
for plain threads, and the broker is started with ``trio-mq serve`` (see :mod:`trio_mq.cli`). Names are loaded when
they are first used: the broker, which needs none of them, starts faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trio_mq import lazy

if TYPE_CHECKING:
    from trio_mq.client.admin import Admin
    from trio_mq.client.consumer import Consumer
    from trio_mq.client.messages import (
        Message,
        Outcome,
        ReceivedMessage,
        SendReceipt,
        SendStatus,
    )
    from trio_mq.client.options import Credentials
    from trio_mq.client.pipeline import PendingSend, Pipeline
    from trio_mq.client.popping import PoppedMessage
    from trio_mq.client.producer import Producer
    from trio_mq.client.pullconsumer import PullConsumer
    from trio_mq.client.requests import reply_to
    from trio_mq.client.simple import SimpleConsumer
    from trio_mq.client.subscription import Sql
    from trio_mq.client.transactions import TransactionReceipt, TransactionState
    from trio_mq.errors import (
        BrokerFailure,
        BrokersFailed,
        ClientError,
        ConfigError,
        HandlerError,
        NoReply,
        NoRoute,
        NotOpen,
        PeerRefused,
        PeerUnavailable,
        ReceiptExpired,
        SendFailed,
        TrioMQError,
    )
    from trio_mq.protocol.bodies import MessageQueue

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "BrokerFailure",
    "BrokersFailed",
    "ClientError",
    "ConfigError",
    "Consumer",
    "Credentials",
    "HandlerError",
    "Message",
    "MessageQueue",
    "NoReply",
    "NoRoute",
    "NotOpen",
    "Outcome",
    "PeerRefused",
    "PeerUnavailable",
    "PendingSend",
    "Pipeline",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "ReceiptExpired",
    "ReceivedMessage",
    "SendFailed",
    "SendReceipt",
    "SendStatus",
    "SimpleConsumer",
    "Sql",
    "TransactionReceipt",
    "TransactionState",
    "TrioMQError",
    "__version__",
    "reply_to",
]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "client.admin": "Admin",
        "client.consumer": "Consumer",
        "client.messages": "Message Outcome ReceivedMessage SendReceipt SendStatus",
        "client.options": "Credentials",
        "client.pipeline": "PendingSend Pipeline",
        "client.popping": "PoppedMessage",
        "client.producer": "Producer",
        "client.pullconsumer": "PullConsumer",
        "client.requests": "reply_to",
        "client.simple": "SimpleConsumer",
        "client.subscription": "Sql",
        "client.transactions": "TransactionReceipt TransactionState",
        "errors": """
            BrokerFailure BrokersFailed ClientError ConfigError HandlerError NoReply
            NoRoute NotOpen PeerRefused PeerUnavailable ReceiptExpired SendFailed
            TrioMQError
        """,
        "protocol.bodies": "MessageQueue",
    },
)
