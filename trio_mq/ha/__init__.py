"""Replication: a master that hands out its log, and a slave that copies it."""
