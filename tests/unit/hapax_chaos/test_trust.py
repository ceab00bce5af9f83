"""Who the programs of a secure world are, and what they get."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hapax_load.connecting import translated

from hapax.codec.service_certificates import service_name
from hapax.local.authority import Authority
from hapax.local.secure import CLIENTS, SERVICES
from hapax.runtime.tls import TlsCertificates, TlsOptions
from hapax_chaos.trust import Trust, number_of
from hapax_chaos.world import Process

BROKER = Process("broker-0", "broker", "10.1.2.3", "", {"nodes": 1, "kafka": 2, "mtls": 3})
ETCD = Process("etcd", "etcd", "10.1.2.4", "", {"kafka": 4})


def trust(folder: Path, login: str = "mixed", *, proxied: bool = False) -> Trust:
    made = Trust(folder, "chaos", {"etcd": ETCD, "broker-0": BROKER}, login)  # type: ignore[arg-type]
    made.prepare("10.1.2.3:2", proxied)
    return made


@pytest.mark.parametrize(("program", "number"), [
    ("c0-0", 0), ("c12-1", 1), ("c12-1-again", 1), ("t3-member-2", 2), ("t3-feeder", 3),
])
def test_each_program_has_its_user_however_often_it_starts(program: str, number: int) -> None:
    assert number_of(program) == number


def test_some_programs_have_a_password_and_some_a_certificate(tmp_path: Path) -> None:
    made = trust(tmp_path)
    assert made.program("c0-0")["sasl.username"] == "program-0"
    assert made.program("c0-1")["security.protocol"] == "SSL"
    (tmp_path / "passwords" / "program-0").write_text("secret")
    assert translated(made.program("c0-0"))["sasl.password"] == "secret"
    assert translated(made.program("c0-1"))["ssl.key.location"].endswith("program-1.key")


def test_behind_the_proxy_all_have_passwords(tmp_path: Path) -> None:
    made = trust(tmp_path, proxied=True)
    assert {made.program(f"c0-{n}")["security.protocol"] for n in range(2)} == {"SASL_SSL"}


def test_tokens_are_signed_by_a_key_that_nodes_know(tmp_path: Path) -> None:
    made = trust(tmp_path, "token")
    made.write_tokens(60)
    keys = json.loads((tmp_path / "tokens" / "keys.json").read_text())["keys"]
    assert [key["kid"] for key in keys] == ["chaos"]
    assert translated(made.program("c0-0"))["oauth_cb"]("")[0].count(".") == 2


def test_a_process_serves_under_its_own_address(tmp_path: Path) -> None:
    settings = trust(tmp_path).node_settings(BROKER)
    assert settings["listeners"] == "INTERNAL://10.1.2.3:1,CLIENTS://10.1.2.3:2,CERTIFIED://10.1.2.3:3"
    certificate = Path(str(settings["service.ssl.certificate.location"])).read_bytes()
    shown = TlsCertificates(TlsOptions(
        chain=certificate.decode(), key=Path(str(settings["service.ssl.key.location"])).read_text()), "server")
    assert str(service_name(shown.der)) == "spiffe://chaos/broker/0"


def test_authorities_are_replaced_in_steps(tmp_path: Path) -> None:
    made = trust(tmp_path)
    former = {name: made.secure.file(f"{name}.crt").read_bytes() for name in (SERVICES, CLIENTS)}
    by_the_former = made.secure.file("broker-0.crt").read_bytes()
    made.secure.add_authorities()
    for name, certificate in former.items():
        both = made.secure.file(f"{name}.crt").read_bytes()
        assert both.endswith(certificate) and both != certificate
        Authority.read(both, made.secure.file(f"{name}.key").read_bytes())
    assert made.secure.file("broker-0.crt").read_bytes() == by_the_former
    made.renew()
    made.secure.drop_former_authorities()
    for name, certificate in former.items():
        assert certificate not in made.secure.file(f"{name}.crt").read_bytes()


def test_a_replacement_that_replaces_nothing_is_no_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trust(tmp_path)
    made.renew()
    monkeypatch.setattr(made.secure, "renew", lambda *arguments: None)
    with pytest.raises(RuntimeError, match=r"not replaced: .*broker-0\.crt, broker-0-public\.crt"):
        made.renew()
