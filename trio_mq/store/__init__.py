"""Append-only files: the commit log, its queues and its index, and what makes them durable."""
