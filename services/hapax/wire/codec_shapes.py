"""The pieces of kafka-python that `hardening` replaces or calls, as the pinned version has them.

`hardening` splices code into what the library generates. It relies on the names in that code (`data`, `pos`), on its
loops, and on attributes that are no public interface. `check` has each of the library's own pieces generate its code
and compares it, line by line, with the code that `hardening` was written for: another version fails at import, before
a decoder without its checks meets a stranger's bytes. Why, and what else was weighed:
docs/decisions/kafka-codecs.md.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from kafka.protocol.schemas.fields import array, simple, struct_array
from kafka.protocol.schemas.fields.codecs import encode_buffer, tagged_fields, types
from kafka.protocol.schemas.fields.codegen import CodegenContext

PINNED: Final = "3.0.12"
"""The version in pyproject.toml."""

_VARINT: Final = """\
x = 0
_sh2 = 0
while True:
    _b1 = data[pos]
    pos += 1
    x |= (_b1 & 0x7f) << _sh2
    if not (_b1 & 0x80): break
    _sh2 += 7"""
_STRING: Final = """\
_ln1 = unpack_from(">h", data, pos)[0]
pos += 2
if _ln1 < 0:
    x = None
else:
    x = str(data[pos:pos+_ln1], "utf-8")
    pos += _ln1"""
_BYTES: Final = """\
_ln1 = unpack_from(">i", data, pos)[0]
pos += 4
if _ln1 < 0:
    x = None
else:
    x = bytes(data[pos:pos+_ln1])
    pos += _ln1"""
_ARRAY: Final = """\
_n1 = unpack_from(">i", data, pos)[0]
pos += 4
if _n1 == -1:
    x = None
else:
    x = []
    for _idx2 in range(_n1):
        _item3 = unpack_from(">h", data, pos)[0]
        pos += 2
        x.append(_item3)"""
_STRUCT_ARRAY: Final = """\
_n1 = 0
_sh3 = 0
while True:
    _b2 = data[pos]
    pos += 1
    _n1 |= (_b2 & 0x7f) << _sh3
    if not (_b2 & 0x80): break
    _sh3 += 7
_n1 -= 1
if _n1 == -1:
    x = None
else:
    x = []
    for _idx4 in range(_n1):
        _val6 = unpack_from(">h", data, pos)[0]
        pos += 2
        if data[pos] == 0:
            pos += 1
        else:
            _bio8 = _BytesIO(bytes(data[pos:]))
            _tfd = _tf7.decode(_bio8, version=0)
            pos += _bio8.tell()
            if _tfd:
                for _tk, _tv in _tfd.items():
                    if _tk.startswith("_"):
                        if _obj5.unknown_tags is None: _obj5.unknown_tags = {}
                        _obj5.unknown_tags[_tk] = _tv
                    else:
                        if _obj5.tags is None: _obj5.tags = set()
                        _obj5.tags.add(_tk)
                        setattr(_obj5, _tk, _tv)
        x.append(_obj5)"""


def check() -> None:
    """Raises ImportError, with one sentence, where a piece is not as expected. Call it before anything is replaced."""
    for piece, (probe, expected) in _PIECES.items():
        try:
            found = probe()
        except Exception as error:
            found = repr(error)
        if found != expected:
            raise ImportError(
                f"kafka-python's {piece} is not the one that hapax.wire.hardening replaces: "
                f"install kafka-python=={PINNED}")


def _field(kind: str, **more: Any) -> dict[str, Any]:
    return {"name": "A", "type": kind, "versions": "0+", **more}


_TAGGED: Final = _field("int16", tag=3, taggedVersions="0+")


def _generated(emit: Callable[[Any], None]) -> str:
    context = CodegenContext()
    emit(context)
    return str(context.source())


def _varint() -> str:
    return _generated(lambda context: types.UnsignedVarInt32.emit_decode_from(context, "x", ""))


def _simple(kind: str) -> Callable[[], str]:
    return lambda: _generated(
        lambda context: simple.SimpleField(_field(kind)).emit_decode_from(context, "x", "", version=0, compact=False))


def _array() -> str:
    return _generated(lambda context: array.ArrayField(_field("[]int16")).emit_decode_from(
        context, "x", "", version=0, compact=False, tagged=False))


def _struct_array() -> str:
    schema = _field("[]S", fields=[_field("int16"), _TAGGED])
    return _generated(lambda context: struct_array.StructArrayField(schema).emit_decode_from(
        context, "x", "", version=0, compact=True, tagged=True))


def _nulls() -> tuple[bool, bool]:
    field = array.ArrayField(_field("[]string", nullableVersions="0+")).array_of
    nullable = field.nullable_for_version_q(0)
    field._nullable_versions = None
    return nullable, field.nullable_for_version_q(0)


def _tagged() -> tuple[str, bytes]:
    """Known tagged fields by their tags, and encoded: count, tag, size, value."""
    tags = tagged_fields.TaggedFields([simple.SimpleField(_TAGGED)])
    out = encode_buffer.EncodeBuffer(8)
    tags.encode_into(SimpleNamespace(a=258), out, version=0)
    return tags._tags[3].name, bytes(out.buf[: out.pos])


def _buffer() -> bytes:
    out = encode_buffer.EncodeBuffer(1)
    types.UnsignedVarInt32.encode_into(out, 300)
    out.ensure(1)
    return bytes(out.buf[: out.pos])


_PIECES: Final[dict[str, tuple[Callable[[], object], object]]] = {
    "rule for nulls": (_nulls, (True, False)),
    "decoder of varints": (_varint, _VARINT),
    "decoder of strings": (_simple("string"), _STRING),
    "decoder of bytes": (_simple("bytes"), _BYTES),
    "decoder of arrays": (_array, _ARRAY),
    "decoder of arrays of structs, or of tagged fields,": (_struct_array, _STRUCT_ARRAY),
    "encoder of tagged fields": (_tagged, ("a", b"\1\3\2\1\2")),
    "encoding buffer": (_buffer, b"\xac\2"),
}
