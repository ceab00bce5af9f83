"""TLS of the client's connections: from its settings to `ports.TlsContexts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hapax.client.errors import SettingsError
from hapax.client.settings import Options

if TYPE_CHECKING:
    from hapax.runtime.tls import TlsCertificates

_WITH_TLS: Final = ("SSL", "SASL_SSL")


def certificates_of(options: Options) -> TlsCertificates | None:
    """None: plaintext. Raises SettingsError for files or texts that cannot be used."""
    given = sorted(name for name in options.given if name.startswith("ssl."))
    protocol = options["security.protocol"]
    if protocol not in _WITH_TLS:
        if given:
            raise SettingsError(f"{given[0]} has no effect without security.protocol=SSL or SASL_SSL")
        return None
    # Imported by clients that use it alone: 10 MB and 0.1 s.
    from hapax.runtime.tls import TlsCertificates, TlsError, TlsOptions, pem_text

    try:
        return TlsCertificates(
            TlsOptions(
                chain=pem_text(options["ssl.keystore.certificate.chain"]), key=pem_text(options["ssl.keystore.key"]),
                key_password=options["ssl.key.password"] or "",
                keystore_location=options["ssl.keystore.location"] or "",
                chain_location=options["ssl.certificate.location"] or "",
                key_location=options["ssl.key.location"] or "",
                authorities=pem_text(options["ssl.truststore.certificates"]),
                authorities_location=options["ssl.truststore.location"] or options["ssl.ca.location"] or "",
                versions=options["ssl.enabled.protocols"],
                verify_host=options["ssl.endpoint.identification.algorithm"] == "https",
                allow_dn_changes=True, allow_san_changes=True,
            ),
            "client", options["client.id"])
    except TlsError as error:
        raise SettingsError(f"security.protocol={protocol}: {error}") from None
