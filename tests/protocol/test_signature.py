"""Signatures of requests, against values of the Java client."""

import attrs
import pytest

from trio_mq.protocol.command import Command
from trio_mq.protocol.signature import signed


def test_the_value_that_java_has_for_a_text():
    """AclSignerTest: the signature of "RocketMQ" with the key "12345678". Here the access key is the whole content."""
    found = signed(Command(10), "RocketMQ", "12345678", None)
    assert found.ext == {"AccessKey": "RocketMQ", "Signature": "IUc8rrO/0gDch8CjObLQsW2rsiA="}


def test_values_go_in_by_the_order_of_their_names_and_then_the_body():
    whole = signed(Command(10), "RocketMQ", "12345678", None).ext["Signature"]
    parts = Command(10, {"Z": "tM", "B": "e"}, b"Q")
    # "AccessKey" < "B" < "Z"
    assert signed(parts, "Rock", "12345678", None).ext["Signature"] == whole


def test_the_token_is_sent_and_signed():
    whole = signed(Command(10), "RocketMQ", "12345678", None).ext["Signature"]
    found = signed(Command(10), "Rocket", "12345678", "MQ")
    assert found.ext == {"AccessKey": "Rocket", "SecurityToken": "MQ", "Signature": whole}


def test_a_request_that_is_signed_again_has_the_same_signature():
    once = signed(Command(10, {"topic": "T"}, b"body"), "me", "secret", None)
    assert signed(once, "me", "secret", None) == once


def test_the_command_stays_as_it_was():
    command = Command(10, {"topic": "T"}, b"body", opaque=7, remark="r")
    found = signed(command, "me", "secret", None)
    assert command.ext == {"topic": "T"}
    assert attrs.evolve(found, ext=command.ext) == command


@pytest.mark.parametrize("key", ["schlüssel", "鍵"])
def test_keys_and_values_are_utf8(key):
    assert signed(Command(10, {"topic": "Ü"}), key, key, None).ext["AccessKey"] == key
