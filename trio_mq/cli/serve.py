"""``trio-mq serve``: options to settings, logs set up, then the whole system until it is stopped.

In: options. Out: the exit code of :func:`trio_mq.system.run_serve`. Errors go to
:func:`trio_mq.cli.app.main`.
"""

from __future__ import annotations

import gc

from trio_mq.cli import options, output


def serve(values: options.Values) -> int:
    """Run a broker and a name server in one process until SIGTERM or SIGINT."""
    settings = options.settings(values)
    level = options.word(values, "--log-level", options.SERVE) or "info"
    log_json = "--log-json" in values
    from trio_mq import logs

    logs.set_up(level=level, as_json=log_json)
    output.log_notices(settings.notices)
    # Loading the system is most of the work of a start; a wrong option needs none of it. Nothing that it makes is
    # garbage, and looking for some would take a tenth of the time.
    gc.disable()
    try:
        from trio_mq.system import run_serve
    finally:
        gc.enable()
    return run_serve(settings, ready_json="--ready-json" in values, log_json=log_json)
