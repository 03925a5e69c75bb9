"""The frozen values themselves: every setting has all that the reference page needs."""

from __future__ import annotations

import attrs
import pytest

from trio_mq.config import BrokerSettings, NameServerSettings, Settings, StoreSettings
from trio_mq.config.settings import SECTIONS, catalogue


def test_every_field_of_a_subsystem_is_in_the_catalogue() -> None:
    listed = [(info.section, info.name) for info in catalogue()]
    fields = [
        (section, field.name) for section, cls in SECTIONS.items() for field in attrs.fields(cls)
    ]
    assert listed == fields
    for info in catalogue():
        assert info.meta.doc.endswith(".")
        assert info.meta.kind.legal


def test_settings_can_be_made_by_hand_for_tests() -> None:
    settings = Settings(
        broker=BrokerSettings(broker_name="b", listen_port=0),
        store=StoreSettings(path="/s", commit_log_path="/log"),
    )
    assert settings.nameserver == NameServerSettings()
    assert settings.store.commit_log_dir == "/log"
    assert StoreSettings(path="/s").commit_log_dir == "/s/commitlog"


def test_settings_do_not_change() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        StoreSettings().path = "/x"  # type: ignore[misc]
