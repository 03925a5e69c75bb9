"""Hypothesis without a time limit per example: a busy machine is no fault of the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("trio-mq", deadline=None)
settings.load_profile("trio-mq")
