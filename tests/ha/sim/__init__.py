"""Seeded runs of replication: a whole simulated cluster, whose network, disks, clocks and machines fail meanwhile."""
