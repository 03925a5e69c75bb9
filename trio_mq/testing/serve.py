"""The process of a broker for tests: ``python -m trio_mq.testing.serve STORE [KEY=VALUE ...]``.

In: what :mod:`.child` takes, which does all of it. Out: its exit code. Started by :mod:`.process`. By itself because
loading the rest is most of the work of a start, and a third of that would be looks for garbage that is not there.
"""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    gc.disable()
    from trio_mq.testing.child import main

    sys.exit(main(sys.argv[1:]))
