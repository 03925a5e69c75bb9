"""Apache's mqadmin in the Java driver, and what it prints without what differs between any two runs.

In: a command and its arguments. Out: its output; and the output with times, addresses, ids and rates replaced, so that
two brokers can be compared.
"""

from __future__ import annotations

import re

import attrs

from .drivers import Driver
from .servers import Server

_PATTERNS = (
    # clients and stores have names of their own
    (re.compile(r"\b\d+\.\d+\.\d+\.\d+@[^ ,\]\n]+"), "<client>"),
    (re.compile(r"/?\b\d+\.\d+\.\d+\.\d+:\d+"), "<address>"),
    (re.compile(r"\b[0-9A-F]{32,56}\b"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]?\d\d:\d\d:\d\d([.,:]\d+)?"), "<time>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d:\d+"), "<time>"),
    (re.compile(r"\b1[67]\d{11}\b|\b20\d{15}\b"), "<ms>"),
    (re.compile(r"\b20\d{12}\b"), "<time>"),
    (re.compile(r"\b\d+ms\b"), "<ms>"),
    # rates, shares, and whatever else has a fraction
    (re.compile(r"\b\d+\.\d+\b"), "<rate>"),
    # what a JVM calls its objects, and this suite its clients
    (re.compile(r"\$\$Lambda\S+|@[0-9a-f]{5,8}\b"), "<object>"),
    (re.compile(r"\b(push|producer)_\d+_\d+\b"), "<name>"),
)
#: Lines of the JVM's log, and links to more help.
_NOISE = re.compile(r"^\d\d:\d\d:\d\d,\d+ \|-|^(For more information|See https)")
_BLANKS = re.compile(r"[ \t]+")


@attrs.frozen
class Mqadmin:
    """The tool, for one broker and its name server."""

    driver: Driver
    server: Server

    def run(self, command: str, *arguments: str, nameserver: bool = True) -> str:
        """What a command prints, errors included."""
        where = ["-n", self.server.nameservers[0]] if nameserver else []
        return self.driver.call("mqadmin.run", 60.0, args=[command, *where, *arguments])


def plain(output: str) -> str:
    """Output without times, addresses, ids and widths of columns."""
    for pattern, text in _PATTERNS:
        output = pattern.sub(text, output)
    lines = (_BLANKS.sub(" ", line).strip() for line in output.splitlines())
    return "\n".join(line for line in lines if line and not _NOISE.search(line))
