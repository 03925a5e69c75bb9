"""Tests of looking into stores, and what they share: see :mod:`tests.lookinside.support`."""
