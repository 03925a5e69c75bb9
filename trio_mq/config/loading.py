"""Layers of given settings to one :class:`Settings`: defaults, the environment, a file, ``--set``, then flags.

In: the path of a file in Apache's properties form, ``KEY=VALUE`` texts, and flags as
:class:`Given`. Out: typed settings with the origin of each value, and notices for what has no
effect; or a ConfigError that names place, key and legal values. Called by the command line.
Reading the file is the only IO.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import attrs

from trio_mq.config import properties
from trio_mq.config.addresses import ANY_HOSTS
from trio_mq.config.broker import BrokerSettings
from trio_mq.config.ha import BrokerRole, HASettings
from trio_mq.config.kinds import LAST_PORT
from trio_mq.config.known import OBSOLETE, REFUSED, apache_keys
from trio_mq.config.nameserver import NameServerSettings
from trio_mq.config.settings import SECTIONS, Notice, SettingInfo, Settings, catalogue
from trio_mq.config.store import CQ_ENTRY_BYTES, StoreSettings
from trio_mq.errors import ConfigError

_OURS: Final[Mapping[str, SettingInfo]] = {
    key: info for info in catalogue() for key in (info.meta.key, *info.meta.aliases)
}


@attrs.frozen
class Given:
    """A value as somebody gave it; `origin` is ``FILE:LINE``, ``--set``, or the flag."""

    key: str
    text: str
    origin: str


#: Without a file nobody has set the broker up: it is there to try things with (case C127).
_TO_TRY_OUT = (Given("enablePropertyFilter", "true", "no file of settings"),)


def load(
    *,
    file: str | None = None,
    overrides: Sequence[str] = (),
    flags: Iterable[Given] = (),
    strict: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """The effective settings; later layers win.

    `overrides` are ``KEY=VALUE`` texts, in which an unknown key is an error: it was typed just
    now. In a file it is a notice, unless `strict`; then each key without effect is an error.
    """
    notices: list[Notice] = []
    given = [
        *([] if file else _TO_TRY_OUT),
        *_from_environment(environment),
        *_from_file(file, notices),
        *map(_from_override, overrides),
        *flags,
    ]
    chosen: dict[str, tuple[Given, object]] = {}
    for item in given:
        info = _OURS.get(item.key)
        if info is None:
            notices.append(_not_ours(item))
        else:
            chosen[info.meta.key] = (item, _typed(info, item, notices))
    idle = [notice for notice in notices if notice.kind in ("unknown", "unused")]
    if strict and idle:
        listed = "; ".join(f"{notice.origin}: {notice.text}" for notice in idle)
        raise ConfigError(f"strict settings: {listed}")
    settings = _build(chosen, notices)
    _check(settings)
    return attrs.evolve(settings, notices=(*notices, *_advice(settings)))


def _from_environment(environment: Mapping[str, str]) -> list[Given]:
    """What variables say, as far as they say it exactly: any other text counts as none, as with RocketMQ-Rust."""
    found: list[Given] = []
    for info in catalogue():
        text = environment.get(info.meta.environment) if info.meta.environment else None
        if text in ("true", "false"):
            found.append(Given(info.meta.key, text, f"environment {info.meta.environment}"))
    return found


def _from_file(path: str | None, notices: list[Notice]) -> list[Given]:
    if path is None:
        return []
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the settings in {path}: {error.strerror}") from error
    given: list[Given] = []
    lines: dict[str, int] = {}
    for entry in properties.parse(data, path):
        origin = f"{path}:{entry.line}"
        key = _OURS[entry.key].meta.key if entry.key in _OURS else entry.key
        if key in lines:
            text = f"{key} was given in line {lines[key]} already; the last one counts"
            notices.append(Notice("note", key, origin, text))
        lines[key] = entry.line
        given.append(Given(entry.key, entry.value, origin))
    return given


def _from_override(text: str) -> Given:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r}: write KEY=VALUE")
    return Given(key.strip(), value.strip(), "--set")


def _typed(info: SettingInfo, item: Given, notices: list[Notice]) -> object:
    kind = info.meta.kind
    try:
        value = kind.parse(item.text)
    except ValueError as error:
        raise ConfigError(
            f"{item.origin}: {item.key} = {item.text!r}: {error}; legal: {kind.legal}"
        ) from error
    if kind.clamp is not None:
        low, high = kind.clamp
        moved = max(low, min(high, value))
        if moved != value:
            text = f"{item.key} = {value} has the effect of {moved}: legal: {low} to {high}"
            notices.append(Notice("note", item.key, item.origin, text))
        value = moved
    return value


def _not_ours(item: Given) -> Notice:
    """What to say about a key that we do not act on; ConfigError where saying is not enough."""
    known = apache_keys().get(item.key)
    if known is None:
        return _unknown(item)
    problem = known.problem(item.text)
    if problem is not None:
        raise ConfigError(f"{item.origin}: {item.key} = {item.text!r}: {problem}")
    refusal = REFUSED.get(item.key)
    if refusal is not None and item.text.lower() not in refusal.allowed:
        raise ConfigError(
            f"{item.origin}: {item.key} = {item.text} {refusal.reason}; "
            "remove the key to serve without"
        )
    text = f"{item.key} is known to Apache, not used here"
    return Notice("unused", item.key, item.origin, text, lost=not known.is_default(item.text))


def _unknown(item: Given) -> Notice:
    if item.key in OBSOLETE:
        text = f"{item.key} is obsolete; Apache 5.4 does not use it either"
        return Notice("unused", item.key, item.origin, text, lost=False)
    near = nearest(item.key)
    text = f"unknown key {item.key}" + (f"; did you mean {near}?" if near else "")
    if item.origin == "--set":
        raise ConfigError(f"--set: {text}")
    return Notice("unknown", item.key, item.origin, text)


def info_of(key: str) -> SettingInfo | None:
    """The setting with this name or alias."""
    return _OURS.get(key)


def nearest(key: str) -> str | None:
    """The known key that looks most like `key`, one that we act on before one of Apache's."""
    import difflib  # only needed for a misspelt key

    for keys in (_OURS, apache_keys()):
        by_lower = {known.lower(): known for known in keys}
        found = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.8)
        if found:
            return by_lower[found[0]]
    return None


def _build(chosen: Mapping[str, tuple[Given, object]], notices: list[Notice]) -> Settings:
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    origins: dict[str, str] = {}
    for key, (item, value) in chosen.items():
        info = _OURS[key]
        values[info.section][info.name] = value
        origins[key] = item.origin
    store = StoreSettings(**values["store"])
    entries = -(-store.mapped_file_size_consume_queue // CQ_ENTRY_BYTES)
    store = attrs.evolve(
        store,
        path=os.path.abspath(store.path),
        mapped_file_size_consume_queue=entries * CQ_ENTRY_BYTES,
    )
    nameserver = NameServerSettings(**values["nameserver"])
    if nameserver.kv_config_path is None:
        path = os.path.join(store.path, "namesrv", "kvConfig.json")
        nameserver = attrs.evolve(nameserver, kv_config_path=path)
    ha = HASettings(**values["ha"])
    broker = BrokerSettings(**values["broker"])
    if broker.broker_id and not ha.is_slave:
        text = (
            f"brokerId = {broker.broker_id} has no effect without brokerRole = SLAVE: a master is 0"
        )
        notices.append(Notice("note", "brokerId", origins["brokerId"], text))
        broker = attrs.evolve(broker, broker_id=0)
    return Settings(
        broker=broker,
        store=store,
        ha=ha,
        nameserver=nameserver,
        origins=origins,
    )


def _check(settings: Settings) -> None:
    """Refuse settings that contradict each other."""
    broker = settings.broker
    if settings.ha.is_slave and not broker.broker_id:
        raise ConfigError(
            f"brokerRole = SLAVE ({settings.origin('brokerRole')}) needs a brokerId above 0, another one "
            "for each slave of a master"
        )
    if broker.fast_listen_port is not None and broker.fast_listen_port < 1:
        raise ConfigError(
            f"listenPort = {broker.listen_port} ({settings.origin('listenPort')}) leaves nothing "
            "for the fast port, which is listenPort - 2; take a higher port, or turn it off "
            "with enableFastPort = false (--no-fast-port)"
        )
    if settings.ha_port > LAST_PORT:
        raise ConfigError(
            f"listenPort = {broker.listen_port} ({settings.origin('listenPort')}) leaves nothing "
            "for the port for slaves, which is listenPort + 1; take a lower port, or set haListenPort"
        )
    _check_ports(settings)


def _check_ports(settings: Settings) -> None:
    """Refuse ports that are wanted twice; 0 is a free one."""
    broker, nameserver, host = settings.broker, settings.nameserver, settings.broker.listen_host
    wanted: list[tuple[str, int | None, str]] = [
        (host, broker.listen_port, "as listenPort of the broker"),
        (host, broker.fast_listen_port, "as the fast port of the broker"),
        (
            settings.ha.bind_address or host,
            settings.ha_port,
            "as the port for slaves, haListenPort",
        ),
    ]
    if nameserver.enabled:
        at, origin = nameserver.listen, settings.origin("nameserverListen")
        wanted.append((at.host, at.port, f"by nameserverListen ({origin})"))
    for (one, port, what), (other, same, besides) in combinations(wanted, 2):
        if port and port == same and (one == other or {one, other} & ANY_HOSTS):
            raise ConfigError(
                f"port {port} is wanted twice: {what}, and {besides}; give one of them another port"
            )


def _advice(settings: Settings) -> list[Notice]:
    """What is allowed but probably not meant."""
    broker = settings.broker
    found: list[Notice] = []

    def note(key: str, text: str) -> None:
        found.append(Notice("note", key, settings.origin(key), text))

    ha = settings.ha
    if ha.role is BrokerRole.SYNC_MASTER and ha.in_sync_replicas < 2:
        text = "waits for no slave with inSyncReplicas = 1; 2 waits for one"
        note("brokerRole", f"brokerRole = SYNC_MASTER {text}")
    if ha.role is BrokerRole.ASYNC_MASTER and ha.in_sync_replicas > 1:
        text = "has no effect without brokerRole = SYNC_MASTER"
        note("inSyncReplicas", f"inSyncReplicas = {ha.in_sync_replicas} {text}")
    if not settings.nameserver.enabled and not broker.nameservers:
        text = "no name server here and none to register at, so clients cannot find the broker"
        note("nameserverEnable", text)
    host = broker.advertise_host
    if host is not None and _is_loopback(broker.listen_host) and not _is_loopback(host):
        text = (
            f"clients are sent to brokerIP1 = {host}, but the broker listens on "
            f"{broker.listen_host} only; bindAddress = 0.0.0.0 (or --listen) opens it"
        )
        note("brokerIP1", text)
    return found


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
