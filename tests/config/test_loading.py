"""Layers, origins, refusals and notices: what a file, ``--set`` and flags make together."""

from __future__ import annotations

from pathlib import Path

import pytest

from trio_mq.config import Address, FlushDiskType, Given, Settings, load
from trio_mq.config.loading import nearest
from trio_mq.errors import ConfigError


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return tmp_path / "broker.conf"


def from_file(conf: Path, text: str, *, strict: bool = False) -> Settings:
    conf.write_text(text)
    return load(file=str(conf), strict=strict)


def texts(settings: Settings, kind: str) -> list[str]:
    return [notice.text for notice in settings.notices if notice.kind == kind]


def test_defaults_are_apaches_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load()
    assert settings.notices == ()
    assert settings.broker.listen_port == 10911
    assert settings.broker.fast_listen_port == 10909
    assert settings.nameserver.listen == Address("127.0.0.1", 9876)
    assert settings.store.path == str(tmp_path / "trio-mq-store")
    assert settings.store.commit_log_dir == str(tmp_path / "trio-mq-store" / "commitlog")
    assert settings.nameserver.kv_config_path == str(
        tmp_path / "trio-mq-store" / "namesrv" / "kvConfig.json"
    )
    assert settings.store.mapped_file_size_commit_log == 1 << 30
    assert settings.store.delay_levels_ms[:3] == (1000, 5000, 10_000)
    assert settings.origin("listenPort") == "default"


def test_c083_flag_wins_over_set_over_file_over_default(conf: Path) -> None:
    """C083: the layers of listenPort, and the origin of the value that counts."""
    conf.write_text("brokerName=a\nlistenPort=20911\n")
    file = str(conf)
    in_file = load(file=file)
    assert (in_file.broker.listen_port, in_file.origin("listenPort")) == (20911, f"{file}:2")
    over = load(file=file, overrides=["listenPort = 20921 "])
    assert (over.broker.listen_port, over.origin("listenPort")) == (20921, "--set")
    flag = load(
        file=file,
        overrides=["listenPort=20921"],
        flags=[Given("listenPort", "20931", "--listen")],
    )
    assert (flag.broker.listen_port, flag.origin("listenPort")) == (20931, "--listen")
    assert flag.origin("brokerName") == f"{file}:1"
    assert flag.origin("brokerId") == "default"


def test_an_apache_file_is_taken_as_it_is(conf: Path) -> None:
    settings = from_file(
        conf,
        "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\n"
        "deleteWhen = 04\nfileReservedTime = 48\nbrokerRole = SYNC_MASTER\n"
        "flushDiskType = SYNC_FLUSH\nnamesrvAddr = 10.0.0.1:9876;10.0.0.2:9876\n",
    )
    assert settings.broker.broker_name == "broker-a"
    assert settings.store.delete_when == (4,)
    assert settings.store.file_reserved_time_hours == 48
    assert settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert settings.broker.nameservers == (Address("10.0.0.1", 9876), Address("10.0.0.2", 9876))
    assert [notice.key for notice in settings.notices] == ["brokerRole"]


@pytest.mark.parametrize("key", ["mapedFileSizeCommitLog", "mappedFileSizeCommitLog"])
def test_old_and_new_spelling_are_one_setting(conf: Path, key: str) -> None:
    settings = from_file(conf, f"{key}=65536")
    assert settings.store.mapped_file_size_commit_log == 65536
    assert settings.origin("mappedFileSizeCommitLog") == f"{conf}:1"
    assert settings.notices == ()


def test_consume_queue_files_hold_whole_entries(conf: Path) -> None:
    assert (
        from_file(conf, "mapedFileSizeConsumeQueue=1201").store.mapped_file_size_consume_queue
        == 1220
    )


def test_a_key_given_twice_counts_once_and_is_noted(conf: Path) -> None:
    settings = from_file(conf, "mapedFileSizeCommitLog=4096\n\nmappedFileSizeCommitLog=8192\n")
    assert settings.store.mapped_file_size_commit_log == 8192
    assert texts(settings, "note") == [
        "mappedFileSizeCommitLog was given in line 1 already; the last one counts"
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "fileReservedTime=0.1",
            "fileReservedTime = '0.1': not a whole number; legal: whole hours, 1 or more",
        ),
        (
            "fileReservedTime=0",
            "fileReservedTime = '0': out of range; legal: whole hours, 1 or more",
        ),
        (
            "deleteWhen=25",
            "deleteWhen = '25': '25' is not an hour of the day; "
            "legal: hours of the day from 0 to 23, several separated by ';'",
        ),
    ],
)
def test_c059_retention_that_cannot_work_is_refused(conf: Path, line: str, reason: str) -> None:
    """C059: both keys stop the start with place, key and legal range."""
    with pytest.raises(ConfigError) as caught:
        from_file(conf, f"# retention\n\n{line}\n")
    assert str(caught.value) == f"{conf}:3: {reason}"


def test_c094_broker_address_is_normalised_or_refused_with_its_line(conf: Path) -> None:
    """C094: the three spellings of the row."""
    assert from_file(conf, "brokerIP1 = [::1]").broker.advertise_host == "::1"
    assert from_file(conf, "brokerIP1 = fd00::1:7a").broker.advertise_host == "fd00::1:7a"
    with pytest.raises(ConfigError, match=r":1: brokerIP1 = .* has the scope id %eth0"):
        from_file(conf, "brokerIP1 = [fe80::1%eth0]")


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n", "\t\r\n"])
def test_c166_blanks_behind_values_do_not_change_them(conf: Path, end: str) -> None:
    """C166: values are trimmed and typed, whatever editor saved the file."""
    lines = [
        "fileReservedTime = 168",
        "autoCreateTopicEnable = false",
        "enableConsumeQueueExt = true",
    ]
    conf.write_bytes(b"\xef\xbb\xbf" + end.join([*lines, ""]).encode())
    settings = load(file=str(conf))
    assert settings.store.file_reserved_time_hours == 168
    assert settings.broker.auto_create_topic_enable is False
    assert [(notice.key, notice.kind, notice.lost) for notice in settings.notices] == [
        ("enableConsumeQueueExt", "unused", True)
    ]


def test_c166_a_bad_value_stops_the_start_with_its_line_even_for_a_key_without_effect(
    conf: Path,
) -> None:
    """C166: types are checked for all keys that Apache knows."""
    for line, reason in [
        (
            "enableConsumeQueueExt = treu",
            "enableConsumeQueueExt = 'treu': not a truth value; legal: true or false",
        ),
        ("sendMessageThreadPoolNums = four", "not a whole number"),
        ("osPageCacheBusyTimeOutMills = 9223372036854775808", "out of range"),
        ("haListenPort = 2147483648", "out of range"),
        ("logicalDiskSpaceCleanForciblyThreshold = x", "not a number"),
    ]:
        with pytest.raises(ConfigError) as caught:
            from_file(conf, f"brokerName=a\n{line}\n")
        assert str(caught.value).startswith(f"{conf}:2: ")
        assert reason in str(caught.value)


def test_c167_misspelt_keys_are_named_with_the_nearest_known_one(conf: Path) -> None:
    """C167: a warning for unknown keys, a list of known ones without effect."""
    settings = from_file(
        conf,
        "brokerIp1=10.0.0.2\nflushDiskTyp=SYNC_FLUSH\nsendMessageThreadPoolNums=16\n"
        "osPageCacheBusyTimeOutMills=1000\nsendMesageThreadPoolNums=1\nxyzzy=1\nstorePathIndex=/x\n",
    )
    assert texts(settings, "unknown") == [
        "unknown key brokerIp1; did you mean brokerIP1?",
        "unknown key flushDiskTyp; did you mean flushDiskType?",
        "unknown key sendMesageThreadPoolNums; did you mean sendMessageThreadPoolNums?",
        "unknown key xyzzy",
    ]
    unused = [notice for notice in settings.notices if notice.kind == "unused"]
    assert [(notice.key, notice.lost) for notice in unused] == [
        ("sendMessageThreadPoolNums", True),
        ("osPageCacheBusyTimeOutMills", False),
        ("storePathIndex", False),
    ]
    assert settings.broker.advertise_host is None


@pytest.mark.parametrize("line", ["brokerIp1=10.0.0.2", "sendMessageThreadPoolNums=16"])
def test_c167_strict_mode_fails_on_a_key_without_effect(conf: Path, line: str) -> None:
    """C167: unknown, and known but not used."""
    key = line.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^strict settings: .*broker.conf:2: .*{key}"):
        from_file(conf, f"brokerName=a\n{line}\n", strict=True)
    assert from_file(conf, "brokerName=a\n", strict=True).broker.broker_name == "a"


def test_an_unknown_key_on_the_command_line_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match=r"--set: unknown key listenprt; did you mean listenPort\?"
    ):
        load(overrides=["listenprt=1"])
    assert load(overrides=["enableConsumeQueueExt=true"]).notices[0].origin == "--set"


@pytest.mark.parametrize("text", ["listenPort", "=1", " =1"])
def test_an_override_is_a_key_and_a_value(text: str) -> None:
    with pytest.raises(ConfigError, match="write KEY=VALUE"):
        load(overrides=[text])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("aclEnable=true", "asks for access control"),
        ("authenticationEnabled = TRUE", "asks for access control"),
        ("enableDLegerCommitLog=true", "asks for a replicated log"),
        ("lockInStrictMode=true", "asks for queue locks that a quorum of replicas agrees on"),
        ("storeType=defaultRocksDB", "asks for consume queues in RocksDB"),
        ("readOnlyCommitLogStorePaths=/a", "asks for a commit log in several directories"),
        ("storePathCommitLog=/a,/b", "several directories"),
        ("useTLS=true", "asks for encrypted connections"),
    ],
)
def test_what_serving_without_would_betray_is_refused(conf: Path, line: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"broker.conf:1: .*{reason}"):
        from_file(conf, line)


@pytest.mark.parametrize("line", ["aclEnable=false", "useTLS=false", "storeType=default"])
def test_the_same_keys_with_harmless_values_pass(conf: Path, line: str) -> None:
    (notice,) = from_file(conf, line).notices
    assert (notice.kind, notice.lost) == ("unused", False)


def test_limits_of_apache_are_kept_with_a_note(conf: Path) -> None:
    settings = from_file(conf, "diskMaxUsedSpaceRatio=99\ndiskSpaceWarningLevelRatio=1\n")
    assert settings.store.disk_max_used_space_ratio == 95
    assert settings.store.disk_space_warning_level_ratio == 1
    assert texts(settings, "note") == [
        "diskMaxUsedSpaceRatio = 99 has the effect of 95: legal: 10 to 95"
    ]


def test_the_last_port_leaves_none_for_slaves() -> None:
    with pytest.raises(ConfigError, match=r"listenPort = 65535 .* set haListenPort"):
        load(overrides=["listenPort=65535"])
    assert load(overrides=["listenPort=65535", "haListenPort=20000"]).ha_port == 20_000


def test_ports_that_are_wanted_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="port 9876 is wanted twice: as listenPort"):
        load(overrides=["listenPort=9876"])
    with pytest.raises(ConfigError, match="port 9876 is wanted twice: as the fast port"):
        load(overrides=["listenPort=9878"])
    with pytest.raises(ConfigError, match="port 9876 is wanted twice"):
        load(overrides=["listenPort=9876", "bindAddress=0.0.0.0"])
    for overrides in (["haListenPort=9876"], ["listenPort=9875"]):
        with pytest.raises(ConfigError, match=r"as the port for slaves, haListenPort, and by name"):
            load(overrides=overrides)
    with pytest.raises(ConfigError, match="as listenPort of the broker, and as the port for slav"):
        load(overrides=["haListenPort=10911"])
    load(overrides=["haListenPort=10911", "haBindAddress=127.0.0.2"])
    load(overrides=["listenPort=9876", "nameserverListen=127.0.0.2:9876"])
    load(overrides=["listenPort=9876", "nameserverEnable=false", "namesrvAddr=10.0.0.1:9876"])
    load(overrides=["listenPort=0", "nameserverListen=127.0.0.1:0"])


def test_a_port_too_low_for_the_fast_port_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"listenPort = 2 \(--set\) leaves nothing"):
        load(overrides=["listenPort=2"])
    assert load(overrides=["listenPort=2", "enableFastPort=false"]).broker.fast_listen_port is None
    assert load(overrides=["listenPort=0"]).broker.fast_listen_port is None


def test_advice_on_what_is_probably_not_meant() -> None:
    hidden = load(overrides=["brokerIP1=10.0.0.5"])
    assert texts(hidden, "note") == [
        "clients are sent to brokerIP1 = 10.0.0.5, but the broker listens on 127.0.0.1 only; "
        "bindAddress = 0.0.0.0 (or --listen) opens it"
    ]
    assert load(overrides=["brokerIP1=10.0.0.5", "bindAddress=0.0.0.0"]).notices == ()
    lonely = load(overrides=["nameserverEnable=false"])
    assert "clients cannot find the broker" in texts(lonely, "note")[0]
    second = load(overrides=["brokerId=1"])
    assert "brokerId = 1 has no effect without brokerRole = SLAVE" in texts(second, "note")[0]


def test_c169_a_store_path_of_many_new_levels_is_taken(conf: Path, tmp_path: Path) -> None:
    """C169: nothing of it needs to exist, and reading settings creates nothing."""
    path = tmp_path / "a" / "b" / "c"
    settings = from_file(conf, f"storePathRootDir={path}")
    assert settings.store.path == str(path)
    assert not (tmp_path / "a").exists()


def test_a_relative_store_path_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(overrides=["storePathRootDir=x/../y"]).store.path == str(tmp_path / "y")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no.conf"
    with pytest.raises(ConfigError, match=r"cannot read the settings in .*no.conf: No such file"):
        load(file=str(missing))
    with pytest.raises(ConfigError, match="Is a directory"):
        load(file=str(tmp_path))


def test_nearest_prefers_keys_that_have_an_effect() -> None:
    assert nearest("MAXMESSAGESIZE") == "maxMessageSize"
    assert nearest("brokerip2") == "brokerIP2"
    assert nearest("popReviveMaxAttemptTime") == "popReviveMaxAttemptTimes"
    assert nearest("zzz") is None


@pytest.mark.parametrize(("text", "optimized"), [("true", True), ("false", False), ("0", True)])
def test_the_environment_chooses_the_way_through_the_log(text: str, optimized: bool):
    """Only the exact words count, as with RocketMQ-Rust; what a file or an option says comes before."""
    environment = {"ROCKETMQ_USE_OPTIMIZED_RECOVERY": text}
    assert load(environment=environment).store.use_optimized_recovery is optimized
    given = load(environment=environment, overrides=["useOptimizedRecovery=false"])
    assert given.store.use_optimized_recovery is False
    assert given.origin("useOptimizedRecovery") == "--set"
