"""The subject of a certificate as text, letter by letter as Java writes it (`X500Principal.getName()`, RFC 2253).

ACLs and mapping rules compare these texts, so a certificate must have the same name here as with Kafka. The order is
that of the RFC, the reverse of the certificate's. Attributes without a keyword in RFC 2253, such as an e-mail address,
are written as their number and the value in hexadecimal DER. A comma in a value is escaped: `O="x,CN=admin"` cannot
pass for a `CN` of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from cryptography import x509

_KEYWORDS: Final = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.25": "DC",
}
_ENCODINGS: Final = {0x0C: "utf-8", 0x13: "latin-1", 0x14: "latin-1", 0x16: "latin-1", 0x1B: "latin-1"}
"""Tags of string types (UTF8, Printable, T61, IA5, General) and how their bytes are read."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def subject_name(certificate: bytes) -> str:
    """`certificate`: DER. Raises ValueError where it cannot be parsed."""
    return name_text(x509.load_der_x509_certificate(certificate).subject.public_bytes())


def name_text(name: bytes) -> str:
    """`name`: DER of a Name: a sequence of sets of (type, value)."""
    (outer,) = _elements(name)
    return ",".join(
        "+".join(_attribute(*_elements(pair.content)) for pair in _elements(part.content))
        for part in reversed(list(_elements(outer.content))))


def _attribute(kind: _Element, value: _Element) -> str:
    number = _object_identifier(kind.content)
    keyword = _KEYWORDS.get(number)
    encoding = _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or number}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode(encoding))}"


def _escaped(text: str) -> str:
    """All spaces at either end are escaped, not only the outermost."""
    inner = text.strip(" ")
    begin = len(text) - len(text.lstrip(" ")) if inner else len(text)
    end = len(text) - begin - len(inner)
    middle = "".join("\\" + c if c in _ESCAPED else "\\00" if c == "\0" else c for c in inner)
    return "\\ " * begin + middle + "\\ " * end


def _elements(data: bytes) -> Iterator[_Element]:
    position = 0
    while position < len(data):
        begin = position
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            more = length & 0x7F
            length = int.from_bytes(data[position : position + more])
            position += more
        end = position + length
        if end > len(data):
            raise ValueError("a name is longer than its encoding")
        yield _Element(tag, data[position:end], data[begin:end])
        position = end


def _object_identifier(content: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))
