"""Measurements; `just bench` compares trio-mq with Apache RocketMQ."""
