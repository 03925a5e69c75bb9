"""Tests of the store, and what they share: see :mod:`tests.store.stores`."""
