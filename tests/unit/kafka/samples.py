"""Random valid messages of any API and version, made from the schemas; the seed of tests that then break them."""

from __future__ import annotations

import random
import uuid
from typing import Any

from hapax.kafka.registry import all_apis
from hapax.wire import messages

REQUESTS: list[tuple[int, str, int, int]] = [
    (api.key, api.name, version, api.first_flexible)
    for api in all_apis()
    for version in range(api.min_version, api.max_version + 1)
]
"""(API key, name, version, first flexible version) of everything that a node advertises."""

_INTEGERS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "int64": 63}


def message(name: str, version: int, rng: random.Random, tags: bool = True) -> Any:
    """An instance of `name` (`FetchRequest`), its fields random within the schema of that version."""
    schema = getattr(messages, name)
    return _struct(schema, schema._struct, version, rng, tags)


def request_frame(key: int, name: str, version: int, first_flexible: int, rng: random.Random) -> bytes:
    """A whole request without its length prefix."""
    flexible = version >= first_flexible
    body = bytes(message(f"{name}Request", version, rng).encode(version=version))
    client = b"sample"
    return (
        key.to_bytes(2, "big") + version.to_bytes(2, "big") + rng.randbytes(4)
        + len(client).to_bytes(2, "big") + client + (b"\0" if flexible else b"") + body
    )


def _struct(make: Any, struct: Any, version: int, rng: random.Random, tags: bool) -> Any:
    values = {}
    for field in struct._fields:
        if not field.for_version_q(version):
            continue
        if field.tagged_field_q(version) and (not tags or rng.random() < 0.7):
            continue
        values[field.name] = _value(field, version, rng, tags)
    return make(version=version, **values)


def _value(field: Any, version: int, rng: random.Random, tags: bool) -> Any:
    if field.nullable_for_version_q(version) and rng.random() < 0.3:
        return None
    if field.is_struct_array():
        # Tagged fields of nested structs: the library encodes those of a tagged field's struct as empty.
        inner = tags and field._tag is None
        return [_struct(field, field.array_of, version, rng, inner) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    if field.is_array():
        return [_scalar(field.array_of._type_str, rng) for _ in range(rng.choice((0, 1, 2, 5)))]
    if field.is_struct():
        return _struct(field, field, version, rng, tags and field._tag is None)
    return _scalar(field._type_str, rng)


def _scalar(kind: str, rng: random.Random) -> Any:
    if kind in _INTEGERS:
        bits = _INTEGERS[kind]
        if kind == "uint16":
            return rng.randrange(1 << bits)
        return rng.choice((0, 1, -1, (1 << bits) - 1, -(1 << bits), rng.randrange(-(1 << bits), 1 << bits)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "uuid":
        return uuid.UUID(bytes=rng.randbytes(16))
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.choice((0, 1, 61, 300)))
    if kind == "float64":
        return 0.5
    if kind == "bitfield":
        return None
    assert kind == "string", kind
    return rng.choice(("", "a", "flights", "ключ", "x" * 200, "../../etc", "a/b"))


def mutate(frame: bytes, rng: random.Random) -> bytes:
    """One to three of: flipped bits, extreme lengths, cut off, run on, bytes inserted, removed or repeated."""
    data = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(8):
            case 0 if data:
                data[at] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                data[at : at + 2] = rng.choice((b"\xff\xff", b"\x7f\xff", b"\x80\x00"))
            case 3:
                data[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00"))
            case 4:
                del data[at:]
            case 5:
                data += rng.randbytes(rng.randint(1, 40))
            case 6:
                data[at:at] = data[at : at + rng.randint(1, 20)]
            case _:
                del data[at : at + rng.randint(1, 8)]
    return bytes(data)
