"""Hypothesis without a time limit per example: a busy machine is no fault of the code.

``--hypothesis-profile=thorough`` takes more examples than a run between two edits should need; CI does.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("trio-mq", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=150)
settings.load_profile("trio-mq")
