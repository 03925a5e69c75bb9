"""A frame to a :class:`Command` and back, for both ways of writing the header.

In: a raw frame of :mod:`trio_mq.protocol.frames`. Out: code, flags, correlation number, custom
header as text pairs, body. Called for every request and answer that has no faster way
(:mod:`trio_mq.protocol.headers.hot`). Formats: JSON header (Apache: ``RemotingCommand``,
``RemotingSerializable``), binary header (Apache: ``RocketMQSerializable``). The serialize type
belongs to one frame: a peer may change it at any time, so it is kept with the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from struct import error as StructError
from typing import Annotated, Any, Final

import attrs
import msgspec

from trio_mq.errors import HeaderError, LocalProtocolError

from .codes import FLAG_ONEWAY, FLAG_RESPONSE, VERSION, LanguageCode, SerializeType
from .frames import RawFrame, encode_frame

_I32_MIN: Final = -(2**31)
_I32_MAX: Final = 2**31 - 1
_LANGUAGE_BY_NAME: Final[Mapping[str, int]] = {language.name: language for language in LanguageCode}
_NAME_BY_LANGUAGE: Final[Mapping[int, str]] = {language: language.name for language in LanguageCode}
_LANGUAGE_BY_NUMBER: Final[Mapping[Any, int]] = {
    language.value: language for language in LanguageCode
}

_I32 = Annotated[int, msgspec.Meta(ge=_I32_MIN, le=_I32_MAX)]


@attrs.define
class Command:
    """One request or answer.

    ``code`` is a request code, or a response code when :attr:`is_response`; ``ext`` the custom
    header, text to text; ``opaque`` the correlation number that an answer repeats; ``language`` is
    ``None`` when the peer names an unknown one.
    """

    code: int
    ext: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    flag: int = 0
    opaque: int = 0
    language: int | None = LanguageCode.PYTHON
    version: int = VERSION
    remark: str | None = None
    serialize: SerializeType = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        """Is this the answer to the request with the same ``opaque``?"""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Must this never be answered?"""
        return bool(self.flag & FLAG_ONEWAY)


def decode(frame: RawFrame) -> Command:
    """The command in a frame; :class:`HeaderError` when its header cannot be read (the peers close
    the connection then)."""
    serialize_type, header, body = frame
    if serialize_type == SerializeType.JSON:
        return _decode_json(header, body)
    return _decode_binary(header, body)


def encode(command: Command) -> bytes:
    """The whole frame of a command, in the way that ``command.serialize`` says.

    :class:`LocalProtocolError` when the format cannot hold a value: the binary header has 16 bits
    for the code.
    """
    if command.serialize == SerializeType.JSON:
        return encode_frame(SerializeType.JSON, _encode_json(command), command.body)
    return encode_frame(SerializeType.ROCKETMQ, _encode_binary(command), command.body)


# --- JSON header


class _JsonHeader(msgspec.Struct, omit_defaults=True, gc=False):
    """Fields in the order in which the peers write them; only ``None`` is a default, so that 0 is
    written."""

    code: _I32
    extFields: Mapping[str, str] | None = None
    flag: _I32 | None = None
    language: str | int | None = None
    opaque: _I32 | None = None
    remark: str | None = None
    serializeTypeCurrentRPC: str | None = None
    version: _I32 | None = None


class _LenientJsonHeader(msgspec.Struct, gc=False):
    """The same, for peers that write numbers as text or values of the custom header as numbers."""

    code: _I32 = 0
    extFields: dict[str, msgspec.Raw] | None = None
    flag: _I32 | None = None
    language: msgspec.Raw = msgspec.Raw(b"null")
    opaque: _I32 | None = None
    remark: msgspec.Raw = msgspec.Raw(b"null")
    version: _I32 | None = None


_decode_strict: Final = msgspec.json.Decoder(_JsonHeader).decode
_decode_lenient: Final = msgspec.json.Decoder(_LenientJsonHeader, strict=False).decode
_encode_header: Final = msgspec.json.Encoder().encode


def _decode_json(header: bytes, body: bytes) -> Command:
    try:
        fields = _decode_strict(header)
    except msgspec.ValidationError:
        return _decode_json_leniently(header, body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise HeaderError(f"JSON header of {len(header)} bytes is broken: {error}") from None
    language = fields.language
    return Command(
        fields.code,
        {} if fields.extFields is None else fields.extFields,
        body,
        fields.flag or 0,
        fields.opaque or 0,
        _LANGUAGE_BY_NAME.get(language)
        if type(language) is str
        else _LANGUAGE_BY_NUMBER.get(language),
        fields.version or 0,
        fields.remark,
        SerializeType.JSON,
    )


def _decode_json_leniently(header: bytes, body: bytes) -> Command:
    """As the peers read a header: other types become text, nulls are left out, a code that is not
    there is 0."""
    try:
        fields = _decode_lenient(header)
        language = _text(fields.language)
        ext = {} if fields.extFields is None else {k: _text(v) for k, v in fields.extFields.items()}
        remark = _text(fields.remark)
    except (msgspec.DecodeError, RecursionError) as error:
        raise HeaderError(f"JSON header of {len(header)} bytes cannot be read: {error}") from None
    return Command(
        fields.code,
        {name: value for name, value in ext.items() if value is not None},
        body,
        fields.flag or 0,
        fields.opaque or 0,
        _language(language),
        fields.version or 0,
        remark,
        SerializeType.JSON,
    )


def _text(raw: msgspec.Raw) -> str | None:
    """A string as it is, anything else as it was written (``true``, ``1.50``), ``null`` as
    ``None``."""
    data = bytes(raw)
    if data.startswith(b'"'):
        return msgspec.json.decode(data, type=str)
    return None if data == b"null" else data.decode()


def _language(text: str | None) -> int | None:
    if text is None:
        return None
    if text.isdecimal():
        return _LANGUAGE_BY_NUMBER.get(int(text))
    return _LANGUAGE_BY_NAME.get(text)


def _encode_json(command: Command) -> bytes:
    try:
        return _encode_header(
            _JsonHeader(
                command.code,
                command.ext or None,
                command.flag,
                None if command.language is None else _NAME_BY_LANGUAGE.get(command.language),
                command.opaque,
                command.remark,
                "JSON",
                command.version,
            )
        )
    except UnicodeEncodeError as error:
        raise LocalProtocolError(
            f"command {command.code}: {error.object!r} is not valid text"
        ) from None


# --- binary header

_FIXED: Final = Struct(">hBhiii")
_I32_FIELD: Final = Struct(">i")
_I16_FIELD: Final = Struct(">h")


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(header)
        remark, position = _cut(header, _FIXED.size, remark_length, "remark")
        (ext_length,) = _I32_FIELD.unpack_from(header, position)
    except StructError:
        raise HeaderError(
            f"binary header ends after {len(header)} bytes, inside its fixed part"
        ) from None
    position += 4
    if ext_length != len(header) - position:
        raise HeaderError(
            f"binary header: extFields of {ext_length} bytes, "
            f"but {len(header) - position} bytes are left"
        )
    ext = _decode_pairs(header, position)
    return Command(
        code,
        ext,
        body,
        flag,
        opaque,
        _LANGUAGE_BY_NUMBER.get(language),
        version,
        remark,
        SerializeType.ROCKETMQ,
    )


def _decode_pairs(header: bytes, position: int) -> dict[str, str]:
    """Pairs up to the end of the header; an empty key or value counts as null, and such a pair is
    left out."""
    ext: dict[str, str] = {}
    end = len(header)
    try:
        while position < end:
            (length,) = _I16_FIELD.unpack_from(header, position)
            key, position = _cut(header, position + 2, length, "key in extFields")
            (length,) = _I32_FIELD.unpack_from(header, position)
            value, position = _cut(header, position + 4, length, f"value of {key!r} in extFields")
            if key is not None and value is not None:
                ext[key] = value
    except StructError:
        raise HeaderError("binary header: a pair in extFields has no room for its length") from None
    return ext


def _cut(header: bytes, position: int, length: int, what: str) -> tuple[str | None, int]:
    if length == 0:
        return None, position
    end = position + length
    if length < 0 or end > len(header):
        raise HeaderError(
            f"binary header: {what} of {length} bytes, but {len(header) - position} bytes are left"
        )
    try:
        return header[position:end].decode(), end
    except UnicodeDecodeError:
        raise HeaderError(f"binary header: {what} is not UTF-8") from None


def _encode_binary(command: Command) -> bytes:
    pairs: list[bytes] = []
    for name, value in command.ext.items():
        key = _utf8(command, name)
        data = _utf8(command, value)
        if len(key) > 32_767:
            raise LocalProtocolError(f"command {command.code}: key of {len(key)} bytes, 32767 fit")
        pairs += (_I16_FIELD.pack(len(key)), key, _I32_FIELD.pack(len(data)), data)
    ext = b"".join(pairs)
    remark = b"" if command.remark is None else _utf8(command, command.remark)
    # A sender without a known language is "other" to the peers; the byte cannot be left out.
    language = LanguageCode.OTHER if command.language is None else command.language
    try:
        fixed = _FIXED.pack(
            command.code, language, command.version, command.opaque, command.flag, len(remark)
        )
    except StructError:
        raise LocalProtocolError(
            f"code {command.code}, language {language}, version {command.version}, opaque "
            f"{command.opaque} or flag {command.flag} does not fit the binary header "
            "(16, 8, 16, 32, 32 bits); send it with a JSON header"
        ) from None
    return b"".join((fixed, remark, _I32_FIELD.pack(len(ext)), ext))


def _utf8(command: Command, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError(f"command {command.code}: {text!r} is not valid text") from None
