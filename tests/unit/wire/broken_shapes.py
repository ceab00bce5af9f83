"""Breaks each piece of kafka-python that `hardening` builds on, one at a time: the import fails with one sentence."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from hapax.codec.late_package import place_late

for package in ("kafka", "kafka.protocol"):
    place_late(package)

from kafka.protocol.schemas.fields import array, base, simple, struct, struct_array  # noqa: E402
from kafka.protocol.schemas.fields.codecs import encode_buffer, tagged_fields, types  # noqa: E402
from kafka.protocol.schemas.fields.codegen import CodegenContext  # noqa: E402


def one_more_line(original: Callable[..., None]) -> Callable[..., None]:
    def emit(self: Any, ctx: Any, var_name: str, indent: str, *args: Any, **options: Any) -> None:
        ctx.emit(indent, "pass")
        original(self, ctx, var_name, indent, *args, **options)

    return emit


def other_name(*_: Any, **__: Any) -> None:
    raise AttributeError("no such piece")


BROKEN: list[tuple[Any, str, Any, str]] = [
    (types.UnsignedVarInt32, "emit_decode_from",
     classmethod(one_more_line(types.UnsignedVarInt32.emit_decode_from.__func__)), "decoder of varints"),
    (types.String, "emit_decode_from", one_more_line(types.String.emit_decode_from), "decoder of strings"),
    (types.Bytes, "emit_decode_from",
     classmethod(one_more_line(types.Bytes.emit_decode_from.__func__)), "decoder of bytes"),
    (simple.SimpleField, "emit_decode_from", other_name, "decoder of strings"),
    (array.ArrayField, "emit_decode_from", one_more_line(array.ArrayField.emit_decode_from), "decoder of arrays"),
    (struct_array.StructArrayField, "emit_decode_from",
     one_more_line(struct_array.StructArrayField.emit_decode_from), "decoder of arrays of structs"),
    (struct.StructField, "_emit_tagged_decode", one_more_line(struct.StructField._emit_tagged_decode), "tagged fields"),
    (base.BaseField, "nullable_for_version_q", lambda self, version: True, "rule for nulls"),
    (tagged_fields.TaggedFields, "encode_into", lambda self, item, out, version=None: None, "encoder of tagged"),
    (encode_buffer.EncodeBuffer, "ensure", other_name, "encod"),
    (CodegenContext, "next_var", lambda self, prefix="v": "y", "decoder of varints"),
    (CodegenContext, "emit", lambda self, indent, line: None, "decoder of varints"),
]


def import_messages() -> None:
    for name in [name for name in sys.modules if name.startswith("hapax.wire")]:
        del sys.modules[name]
    importlib.import_module("hapax.wire.messages")


for owner, attribute, broken, named in BROKEN:
    with patch.object(owner, attribute, broken):
        try:
            import_messages()
        except ImportError as error:
            assert named in str(error) and "install kafka-python==3.0.12" in str(error), error
        else:
            raise AssertionError(f"{attribute} of {owner.__name__} is broken, and nothing says so")
import_messages()
