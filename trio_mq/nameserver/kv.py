"""Key-value settings of the name server, and the file that keeps them.

In: namespace, key and value from requests; the bytes of Apache's ``kvConfig.json``. Out: values,
and that file. Called by the name server's processors and its saver task. Source of the format:
Apache KVConfigManager, KVConfigSerializeWrapper: ``{"configTable":{"NAMESPACE":{"key":"value"}}}``.

A save leaves the old or the new file, wherever the power goes: the new text is written aside,
synced, renamed over the old one, and the rename is synced. The text before it stays as ``.bak``, as
with Apache. A file that cannot be read is kept under another name and told about, not written over.
"""

from __future__ import annotations

import logging
import os

import attrs

from trio_mq.errors import BodyError
from trio_mq.protocol import jsondialect
from trio_mq.store.disk import Disk

log = logging.getLogger("trio_mq.nameserver.kv")

#: Namespace of order configurations: topic to ``broker:queues;broker:queues``.
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

Tables = dict[str, dict[str, str]]


@attrs.define
class KVConfig:
    """Namespace to key to value. `version` grows with every change."""

    tables: Tables = attrs.field(factory=dict)
    version: int = 0

    def get(self, namespace: str, key: str) -> str | None:
        """The value, None when there is none."""
        return self.tables.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All keys of a namespace, None when it is empty or unknown."""
        return self.tables.get(namespace) or None

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value."""
        self.tables.setdefault(namespace, {})[key] = value
        self.version += 1

    def delete(self, namespace: str, key: str) -> bool:
        """Remove a value; whether there was one."""
        table = self.tables.get(namespace)
        if table is None or table.pop(key, None) is None:
            return False
        if not table:
            del self.tables[namespace]
        self.version += 1
        return True

    def encode(self) -> bytes:
        """The content of ``kvConfig.json``."""
        return jsondialect.dumps({"configTable": self.tables})


def decode(data: bytes) -> Tables:
    """Read the content of ``kvConfig.json``; BodyError when it is something else."""
    value = jsondialect.loads(data)
    tables = value.get("configTable") if isinstance(value, dict) else None
    if tables is None and isinstance(value, dict):
        return {}
    if not isinstance(tables, dict):
        raise BodyError("kvConfig.json has no object configTable")
    result: Tables = {}
    for namespace, table in tables.items():
        if not isinstance(table, dict):
            raise BodyError(f"kvConfig.json: namespace {namespace!r} is not an object")
        result[str(namespace)] = {str(key): str(text) for key, text in table.items()}
    return result


class KVFile:
    """``kvConfig.json`` on a disk. Both calls block: the name server makes them off the loop."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self._disk = disk

    def load(self) -> KVConfig:
        """What the file says, else what its backup says, else nothing."""
        for path in (self.path, self.path + ".bak"):
            if not self._disk.exists(path):
                continue
            data = self._read(path)
            try:
                # Apache leaves an empty file when the disk was full; that is damage, not an empty
                # table.
                if not data.strip(b"\0 \r\n\t"):
                    raise BodyError("the file is empty")
                return KVConfig(decode(data))
            except BodyError as error:
                kept = self._set_aside(path)
                log.error("%s is damaged (%s); it is kept as %s", path, error, kept)
        return KVConfig()

    def save(self, content: bytes) -> None:
        """Replace the file, durably."""
        directory = os.path.dirname(self.path)
        if not self._disk.is_dir(directory):
            self._disk.make_dirs(directory)
            self._disk.sync_dir(os.path.dirname(directory))
        if self._disk.exists(self.path):
            self._write(self.path + ".bak", self._read(self.path))
        self._write(self.path, content)
        self._disk.sync_dir(directory)

    def _read(self, path: str) -> bytes:
        file = self._disk.open(path, readonly=True)
        try:
            return file.read(file.size(), 0)
        finally:
            file.close()

    def _write(self, path: str, content: bytes) -> None:
        file = self._disk.open(path + ".tmp", create=True)
        try:
            file.truncate(0)
            file.write(content, 0)
            file.sync()
        finally:
            file.close()
        self._disk.rename(path + ".tmp", path)

    def _set_aside(self, path: str) -> str:
        number = 1
        while self._disk.exists(f"{path}.damaged-{number}"):
            number += 1
        self._disk.rename(path, f"{path}.damaged-{number}")
        return f"{path}.damaged-{number}"
