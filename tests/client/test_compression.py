"""Bodies are compressed by size alone, and read back."""

import zlib

import pytest

from trio_mq.client.compression import compressed
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.message import decompress

LARGE = b"abcd" * 1024


def test_a_body_from_the_limit_on_is_compressed_and_says_so():
    body, flag = compressed(LARGE, 0)
    assert len(body) < 100
    assert flag == MessageFlag.COMPRESSED | MessageFlag.COMPRESSION_ZLIB
    assert decompress(body, flag) == LARGE


def test_the_level_is_that_of_apaches_clients():
    assert compressed(LARGE, 0)[0] == zlib.compress(LARGE, 5)


@pytest.mark.parametrize("size", [1, 4095])
def test_a_smaller_body_stays(size):
    assert compressed(b"x" * size, 0) == (b"x" * size, 0)


def test_a_compressed_body_is_not_compressed_again():
    body, flag = compressed(LARGE, 0)
    assert compressed(body * 100, flag) == (body * 100, flag)


def test_other_flags_stay():
    _, flag = compressed(LARGE, MessageFlag.TRANSACTION_PREPARED)
    assert flag & MessageFlag.TRANSACTION_PREPARED


def test_the_limit_is_the_producers():
    assert compressed(b"y" * 10, 0, 10)[1]
    assert not compressed(b"y" * 10, 0, 11)[1]
