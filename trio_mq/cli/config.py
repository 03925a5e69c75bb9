"""``trio-mq config show``: every effective setting and where its value comes from.

In: the options of ``serve`` that change settings. Out: a table or a JSON object on stdout, notices
on stderr. Nothing is created, and nothing opened but the file of settings.
"""

from __future__ import annotations

import sys

from trio_mq.cli import options, output


def show(values: options.Values) -> int:
    """Print the settings that ``serve`` would use with the same options, and their origins."""
    settings = options.settings(values)
    if "--json" in values:
        sys.stdout.write(output.settings_json(settings) + "\n")
        return 0
    sys.stdout.write(output.settings_table(settings) + "\n")
    sys.stdout.flush()
    for line in output.notice_lines(settings.notices):
        sys.stderr.write(f"note: {line.text}\n")
    return 0
