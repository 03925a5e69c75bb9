"""Settings of a running name server: the text that shows them, and changes to them.

In: the settings, or the body of UPDATE_NAMESRV_CONFIG, lines ``key=value``. Out: the body of
GET_NAMESRV_CONFIG, or changed settings. Called by the processors. A change lasts until the process
ends. Source of the rules: Apache DefaultRequestProcessor.updateConfig, Configuration.
"""

from __future__ import annotations

import logging
from typing import Final

import attrs

from trio_mq.config import properties
from trio_mq.config.declare import MARK, SettingMeta
from trio_mq.config.nameserver import NameServerSettings
from trio_mq.errors import ConfigError, RequestRefused
from trio_mq.protocol.codes import ResponseCode

log = logging.getLogger("trio_mq.nameserver")

#: Never changed over the network: with Apache they say which files a request may overwrite.
BLACK_LIST: Final = frozenset(
    {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
)
#: Fixed at the start.
FIXED: Final = frozenset({"nameserverEnable", "nameserverListen"})


def show(settings: NameServerSettings) -> bytes:
    """All settings as ``key=value`` lines."""
    lines = []
    for field in attrs.fields(NameServerSettings):
        meta: SettingMeta = field.metadata[MARK]
        lines.append(f"{meta.key}={meta.kind.show(getattr(settings, field.name))}\n")
    return "".join(lines).encode()


def change(settings: NameServerSettings, body: bytes) -> NameServerSettings:
    """The settings with the changes of `body`: all of them, or a refusal that names the bad one.

    Keys that are not ours are skipped with a log line: peers send theirs too.
    """
    try:
        entries = properties.parse(body, "UPDATE_NAMESRV_CONFIG")
    except ConfigError as error:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
    fields = {field.metadata[MARK].key: field for field in attrs.fields(NameServerSettings)}
    changes: dict[str, object] = {}
    for entry in entries:
        if entry.key in BLACK_LIST:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"{entry.key} cannot be changed by a request"
            )
        if entry.key in FIXED:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"{entry.key} is fixed at the start; restart with it"
            )
        field = fields.get(entry.key)
        if field is None:
            log.warning("setting %s is not one of this name server, skipped", entry.key)
            continue
        kind = field.metadata[MARK].kind
        try:
            changes[field.name] = kind.parse(entry.value)
        except ValueError as error:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{entry.key}={entry.value}: {error}; legal is {kind.legal}",
            ) from error
    return attrs.evolve(settings, **changes)  # type: ignore[arg-type]
