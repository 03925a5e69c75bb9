"""The crash sweep: one life of a broker on a disk in memory, and the power cut after each of its disk operations."""
