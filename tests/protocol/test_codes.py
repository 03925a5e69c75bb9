"""The numbers are those of the peer's release, all of them."""

from __future__ import annotations

from tests.protocol import facts
from trio_mq.protocol import codes


def test_request_codes_are_the_peers() -> None:
    assert {code.name: code.value for code in codes.RequestCode} == facts.load("codes.json")[
        "request"
    ]


def test_response_codes_are_the_peers() -> None:
    found = {code.name: code.value for code in codes.ResponseCode}
    assert found == facts.load("codes.json")["response"]


def test_no_number_has_two_names() -> None:
    # An IntEnum would silently make the second name an alias, and the sets above would differ.
    for enumeration in (codes.RequestCode, codes.ResponseCode, codes.LanguageCode):
        assert len(enumeration.__members__) == len(list(enumeration))


def test_message_flags_cover_their_masks() -> None:
    flags = codes.MessageFlag
    assert flags.TRANSACTION_ROLLBACK == codes.TRANSACTION_MASK
    assert flags.TRANSACTION_PREPARED | flags.TRANSACTION_COMMIT == codes.TRANSACTION_MASK
    for kind in (flags.COMPRESSION_LZ4, flags.COMPRESSION_ZSTD, flags.COMPRESSION_ZLIB):
        assert kind & codes.COMPRESSION_MASK == kind
    assert flags.COMPRESSION_ZLIB >> 8 == 3
