"""What holds for every test.

Hypothesis has no time limit per example: a busy machine is no fault of the code. ``--hypothesis-profile=thorough``
takes more examples than a run between two edits should need; CI does.

Child processes share compiled modules, even where the machine says not to write them: compiling costs each of some
hundred brokers more than its start.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from hypothesis import HealthCheck, settings

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) and "PYTHONPYCACHEPREFIX" not in os.environ:
    compiled = tempfile.mkdtemp(prefix="trio-mq-compiled-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    os.environ["PYTHONPYCACHEPREFIX"] = compiled

BUSY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("trio-mq", max_examples=25, **BUSY)
settings.register_profile("thorough", max_examples=150, **BUSY)
settings.load_profile("trio-mq")
