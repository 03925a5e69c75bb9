"""Two real brokers, each in a network namespace of its own, and a router between them that drops their packets."""
