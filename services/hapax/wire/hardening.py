"""Makes kafka-python's generated decoders safe against hostile bytes, and its encoders write unknown tagged fields.

The library compiles a decoder for each message and version. It expects answers of a trusted broker. This module
replaces pieces of the code generator to add the missing checks:

* A varint ends after five bytes. The library reads a number of any length, in quadratic time.
* A string, byte array or array must fit into the rest of the frame. The library's slices past the end are silently
  short.
* Some arrays have a bound of their own (`_MOST_ELEMENTS`). Their elements may be long, so their frames may be; a frame
  of hundreds of thousands of tiny elements would hold the loop for seconds.
* A null is accepted only where the schema allows it. Handlers would find None where they expect a list.
* Tagged fields are read in place. The library copies the rest of the frame for each, in quadratic time.

Encoders also write unknown tagged fields, because Hapax's own fields are such.
"""

from __future__ import annotations

import io
import re
from typing import Any, Final

from kafka.protocol.schemas.fields import array, simple, struct, struct_array
from kafka.protocol.schemas.fields.codecs import encode_buffer, tagged_fields, types

from hapax.codec.varint import read_uvarint
from hapax.wire import codec_shapes

_LOOP: Final = re.compile(r"( *)for \w+ in range\((\w+)\):$")
_MAX_TAGS: Final = 1000
_MOST_ELEMENTS: Final = {
    "[]JoinGroupRequestProtocol": 1_000, "[]SyncGroupRequestAssignment": 20_000, "[]MemberIdentity": 10_000,
}
"""By the array's type in the schema: protocols of a member, members of a group, members that leave in one call."""


def _emit_varint(cls: Any, ctx: Any, var_name: str, indent: str) -> None:
    byte, shift = ctx.next_var("b"), ctx.next_var("sh")
    for line in (
        f"{var_name} = data[pos]",
        "pos += 1",
        f"if {var_name} & 0x80:",
        f"    {var_name} &= 0x7f",
        f"    {shift} = 7",
        "    while True:",
        f"        {byte} = data[pos]",
        "        pos += 1",
        f"        {var_name} |= ({byte} & 0x7f) << {shift}",
        f"        if not ({byte} & 0x80): break",
        f"        {shift} += 7",
        f"        if {shift} > 28: raise ValueError('a varint of more than five bytes')",
    ):
        ctx.emit(indent, line)


def _emit_length(ctx: Any, indent: str, compact: bool, fmt: str, size: int) -> str:
    length = str(ctx.next_var("ln"))
    if compact:
        types.UnsignedVarInt32.emit_decode_from(ctx, length, indent)
        ctx.emit(indent, f"{length} -= 1")
    else:
        ctx.emit(indent, f'{length} = unpack_from(">{fmt}", data, pos)[0]')
        ctx.emit(indent, f"pos += {size}")
    return length


def _emit_sized(ctx: Any, var_name: str, indent: str, length: str, convert: str) -> None:
    ctx.emit(indent, f"if {length} < 0:")
    ctx.emit(indent, f"    {var_name} = None")
    ctx.emit(indent, "else:")
    ctx.emit(indent, f"    if {length} > len(data) - pos: raise ValueError('a length past the end of the frame')")
    ctx.emit(indent, f"    {var_name} = {convert.format(f'data[pos:pos+{length}]')}")
    ctx.emit(indent, f"    pos += {length}")


def _emit_string(self: Any, ctx: Any, var_name: str, indent: str, compact: bool = False) -> None:
    _emit_sized(ctx, var_name, indent, _emit_length(ctx, indent, compact, "h", 2), 'str({}, "utf-8")')


def _emit_bytes(cls: Any, ctx: Any, var_name: str, indent: str, compact: bool = False) -> None:
    _emit_sized(ctx, var_name, indent, _emit_length(ctx, indent, compact, "i", 4), "bytes({})")


def _required(self: Any, ctx: Any, var_name: str, indent: str, version: int) -> None:
    if not self.nullable_for_version_q(version):
        ctx.emit(indent, f"if {var_name} is None: raise ValueError('a null that the schema does not allow')")


def _simple(emit: Any) -> Any:
    def emit_decode_from(self: Any, ctx: Any, var_name: str, indent: str, *, version: int, **options: Any) -> None:
        emit(self, ctx, var_name, indent, version=version, **options)
        if self._type is types.Bytes or isinstance(self._type, types.String):
            _required(self, ctx, var_name, indent, version)

    return emit_decode_from


def _array(emit: Any) -> Any:
    """Adds a check of the claimed count: every element takes at least one byte."""

    def emit_decode_from(self: Any, ctx: Any, var_name: str, indent: str, *, version: int, **options: Any) -> None:
        self.array_of._nullable_versions = None  # these are the array's; the library passes them on to its elements
        first = len(ctx.lines)
        emit(self, ctx, var_name, indent, version=version, **options)
        index, loop = next(
            (index, loop) for index in range(first, len(ctx.lines)) if (loop := _LOOP.match(ctx.lines[index])))
        check = f"if {loop[2]} > len(data) - pos: raise ValueError('a count past the end of the frame')"
        ctx.lines.insert(index, loop[1] + check)
        most = _MOST_ELEMENTS.get(self._type_str)
        if most is not None:
            ctx.lines.insert(index, f"{loop[1]}if {loop[2]} > {most}: raise ValueError('more than {most} elements')")
        _required(self, ctx, var_name, indent, version)

    return emit_decode_from


def _emit_tags(self: Any, ctx: Any, var_name: str, indent: str, version: int) -> None:
    known = ctx.next_var("tf")
    ctx.globs[known] = self.tagged_fields(version)
    ctx.globs["_read_tags"] = _read_tags
    ctx.emit(indent, f"pos = _read_tags({var_name}, data, pos, {known}, {version})")


def _read_tags(message: Any, data: memoryview, position: int, known: Any, version: int) -> int:
    """Sets the tagged fields of `message` that start at `position`. Returns the position after them."""
    count, position = read_uvarint(data, position)
    if count > _MAX_TAGS:
        raise ValueError(f"{count} tagged fields")
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        end = position + size
        if end > len(data):
            raise ValueError("a tagged field past the end of the frame")
        value = bytes(data[position:end])
        position = end
        field = known._tags.get(tag)
        if field is None:
            if message.unknown_tags is None:
                message.unknown_tags = {}
            message.unknown_tags[f"_{tag}"] = value
        else:
            if message.tags is None:
                message.tags = set()
            message.tags.add(field.name)
            setattr(message, field.name,
                    field.decode(io.BytesIO(value), version=version, compact=True, tagged=None))
    return position


_encode_known_tags: Final = tagged_fields.TaggedFields.encode_into


def _encode_tags(self: Any, item: Any, out: Any, version: int | None = None) -> None:
    unknown: dict[str, bytes] | None = getattr(item, "unknown_tags", None)
    if not unknown:
        _encode_known_tags(self, item, out, version=version)
        return
    known = encode_buffer.EncodeBuffer(256)
    _encode_known_tags(self, item, known, version=version)
    count, start = read_uvarint(memoryview(known.buf), 0)
    put_varint = types.UnsignedVarInt32.encode_into
    put_varint(out, count + len(unknown))
    _put(out, bytes(known.buf[start : known.pos]))
    for name in sorted(unknown, key=lambda name: int(name[1:])):  # tags must ascend; the known ones are lower
        put_varint(out, int(name[1:]))
        put_varint(out, len(unknown[name]))
        _put(out, unknown[name])


def _put(out: Any, data: bytes) -> None:
    out.ensure(len(data))
    out.buf[out.pos : out.pos + len(data)] = data
    out.pos += len(data)


def install() -> None:
    """Replaces the pieces, once, before any message is compiled. Raises ImportError where the library's pieces are
    not those that this module was written for."""
    codec_shapes.check()
    types.UnsignedVarInt32.emit_decode_from = classmethod(_emit_varint)
    types.String.emit_decode_from = _emit_string
    types.Bytes.emit_decode_from = classmethod(_emit_bytes)
    simple.SimpleField.emit_decode_from = _simple(simple.SimpleField.emit_decode_from)
    array.ArrayField.emit_decode_from = _array(array.ArrayField.emit_decode_from)
    struct_array.StructArrayField.emit_decode_from = _array(struct_array.StructArrayField.emit_decode_from)
    struct.StructField._emit_tagged_decode = _emit_tags
    tagged_fields.TaggedFields.encode_into = _encode_tags
