"""Replication between brokers of both kinds."""
