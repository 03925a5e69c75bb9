"""Tests of the Python client, without a network where that is possible."""
