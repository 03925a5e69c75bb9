"""Inputs for property tests: hosts, property maps, batches and stored records of every kind."""

from __future__ import annotations

import zlib

from hypothesis import strategies as st

from trio_mq.protocol import properties as props
from trio_mq.protocol.layout import MAGIC_V1, MAGIC_V2
from trio_mq.protocol.message import BatchItem, Host
from trio_mq.protocol.record import StoredMessage, record_size

INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
LOG_OFFSETS = st.integers(0, (1 << 62) - 1)
PORTS = st.integers(0, 0xFFFF)

# Any text that UTF-8 can hold, without the separators of properties.
TEXT = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\x01\x02"), max_size=40
)
NAMES = st.one_of(
    st.sampled_from([props.KEYS, props.TAGS, props.UNIQ_KEY, props.WAIT, props.CLUSTER]),
    TEXT.filter(bool),
)
TOPICS = st.text(
    st.sampled_from("ABCXYZabcxyz0189%|-_"), min_size=1, max_size=255
)  # what the peers allow

V4_HOSTS = st.builds(Host, st.ip_addresses(v=4).map(str), PORTS)
V6_HOSTS = st.builds(Host, st.ip_addresses(v=6).map(str), PORTS)
HOSTS = st.one_of(V4_HOSTS, V6_HOSTS)

PROPERTY_MAPS = st.dictionaries(NAMES, TEXT.filter(bool), max_size=6)
BATCH_ITEMS = st.builds(BatchItem, INT32, st.binary(max_size=60), PROPERTY_MAPS.map(props.encode))


@st.composite
def property_texts(draw: st.DrawFn) -> bytes:
    """Property bytes as bad as they come: separators anywhere, repeated and cut names, broken
    UTF-8."""
    pieces = st.sampled_from(
        [
            b"\x01",
            b"\x02",
            b"TAGS",
            b"TAGS\x01",
            b"XTAGS\x01",
            b"KEYS\x01a b",
            b"v",
            b"\xff",
            b"\xc3",
        ]
    )
    return b"".join(draw(st.lists(pieces, max_size=14)))


@st.composite
def stored_messages(draw: st.DrawFn, *, max_body: int = 300) -> StoredMessage:
    """A record with right lengths and CRC: V1 or V2, all four pairs of address kinds, with or
    without properties."""
    born, store = draw(HOSTS), draw(HOSTS)
    topic = draw(TOPICS)
    body = draw(st.binary(max_size=max_body))
    properties = props.encode(draw(PROPERTY_MAPS))
    sys_flag = draw(INT32) & ~0x30 | (0x10 if born.is_v6 else 0) | (0x20 if store.is_v6 else 0)
    return StoredMessage(
        size=record_size(len(body), len(topic), len(properties), sys_flag),
        magic=MAGIC_V1 if len(topic) <= 127 else MAGIC_V2,
        body_crc=zlib.crc32(body) & 0x7FFF_FFFF,
        queue_id=draw(INT32),
        flag=draw(INT32),
        queue_offset=draw(INT64),
        log_offset=draw(LOG_OFFSETS),
        sys_flag=sys_flag,
        born_timestamp_ms=draw(INT64),
        born_host=born,
        store_timestamp_ms=draw(INT64),
        store_host=store,
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
        body=body,
        topic=topic,
        properties=properties,
    )
