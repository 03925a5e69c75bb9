"""``trio-mq serve``: options to settings, logs set up, then the whole system until it is stopped.

In: options. Out: the exit code of :func:`trio_mq.system.run_serve`. Errors go to
:func:`trio_mq.cli.app.main`.
"""

from __future__ import annotations

from trio_mq.cli import options, output


def serve(values: options.Values) -> int:
    """Run a broker and a name server in one process until SIGTERM or SIGINT."""
    settings = options.settings(values)
    level = options.word(values, "--log-level", options.SERVE) or "info"
    log_json = "--log-json" in values
    from trio_mq import logs

    logs.set_up(level=level, as_json=log_json)
    output.log_notices(settings.notices)
    # loading the system is most of the work of a start; a wrong option needs none of it
    from trio_mq.system import run_serve

    return run_serve(settings, ready_json="--ready-json" in values, log_json=log_json)
