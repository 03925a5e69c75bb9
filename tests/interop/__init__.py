"""The real thing against trio-mq, and against Apache RocketMQ itself (``--broker apache``)."""
