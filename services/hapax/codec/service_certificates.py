"""The name of a process of the cluster in its certificate (`core/access/services.py`)."""

from __future__ import annotations

from cryptography import x509

from hapax.core.access.services import ServiceName

_PREFIX = "spiffe://"


def service_name(certificate: bytes) -> ServiceName:
    """`certificate`: DER. Raises ValueError unless the certificate names exactly one process."""
    try:
        names = x509.load_der_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName).value.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        names = []
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(f"the certificate's alternative names cannot be read: {error}") from None
    found = [each for each in names if each.startswith(_PREFIX)]
    if len(found) != 1:
        raise ValueError(
            "the certificate names no process of a cluster (an alternative name spiffe://CLUSTER/ROLE/ID)"
            if not found else f"the certificate names several processes: {', '.join(found)}")
    return ServiceName.parse(found[0])
