"""Fakes for tests, shipped with the package: a disk that crashes, wall time on Trio's clock.

Only tests import it.
"""
