"""Names of certificates, as Java 17's X500Principal.getName() gives them for the same bytes."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import NameAttribute, NameOID, ObjectIdentifier, RelativeDistinguishedName
from hypothesis import given
from hypothesis import strategies as st

from hapax.codec.distinguished_names import name_text, subject_name
from hapax.local.authority import Authority

CN, ORG, OU, C = (
    NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.COUNTRY_NAME)


def name(*parts: tuple[ObjectIdentifier, str]) -> bytes:
    return x509.Name([NameAttribute(*part) for part in parts]).public_bytes()


@pytest.mark.parametrize(("encoded", "text"), [
    (name((C, "DE"), (ORG, "b"), (CN, "a")), "CN=a,O=b,C=DE"),
    (name((ORG, "x,CN=admin"), (CN, '#a+b<c>d;e"f\\g=h/i')),
     r'CN=\#a\+b\<c\>d\;e\"f\\g\=h/i,O=x\,CN\=admin'),
    (name((CN, "  two  ")), r"CN=\ \ two\ \ "),
    (name((CN, " ")), r"CN=\ "),
    (name((CN, "#x #")), r"CN=\#x \#"),
    (name((CN, "a\0b\nc")), "CN=a\\00b\nc"),
    (name((CN, "Jürgen € 😀")), "CN=Jürgen € 😀"),
    (name((NameOID.EMAIL_ADDRESS, "a@b.c"), (CN, "a")), "CN=a,1.2.840.113549.1.9.1=#16056140622e63"),
    (name((ObjectIdentifier("1.2.3.4"), "v"), (CN, "a")), "CN=a,1.2.3.4=#0c0176"),
    (name((NameOID.LOCALITY_NAME, "l"), (NameOID.STATE_OR_PROVINCE_NAME, "s"), (NameOID.STREET_ADDRESS, "st"),
          (NameOID.DOMAIN_COMPONENT, "dc"), (NameOID.USER_ID, "uid"), (NameOID.SERIAL_NUMBER, "12")),
     "2.5.4.5=#13023132,UID=uid,DC=dc,STREET=st,ST=s,L=l"),
    (b"\x30\x00", ""),
])
def test_names_are_java_s(encoded: bytes, text: str) -> None:
    assert name_text(encoded) == text


def test_attributes_of_one_set_are_joined_by_a_plus() -> None:
    both = RelativeDistinguishedName([NameAttribute(CN, "a"), NameAttribute(OU, "u")])
    encoded = x509.Name([both, RelativeDistinguishedName([NameAttribute(ORG, "o")])]).public_bytes()
    assert name_text(encoded) == "O=o,CN=a+OU=u"


def test_a_certificate_s_subject_is_read() -> None:
    issued = Authority.make().issue("CN=alice,O=shop")
    der = x509.load_pem_x509_certificate(issued.certificate).public_bytes(Encoding.DER)
    assert subject_name(der) == "CN=alice,O=shop"


def test_a_certificate_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError):
        subject_name(b"\x30\x03\x02\x01\x01")


def test_a_name_longer_than_its_bytes_is_an_error() -> None:
    with pytest.raises(ValueError):
        name_text(b"\x30\x05\x31\x03")


@given(st.lists(st.tuples(st.sampled_from((CN, ORG, OU)), st.text(min_size=1, max_size=20)), min_size=1, max_size=4))
def test_a_value_never_passes_for_an_attribute_of_its_own(parts: list[tuple[ObjectIdentifier, str]]) -> None:
    try:
        encoded = name(*parts)
    except ValueError:  # lengths that the standard forbids, lone surrogates
        return
    text = name_text(encoded)
    unescaped, depth = 0, False
    for char in text:
        if depth:
            depth = False
        elif char == "\\":
            depth = True
        elif char == "=":
            unescaped += 1
    assert unescaped == len(parts)
