"""Names that YAML reads as numbers, booleans, nothing or dates: the chart quotes them wherever it writes them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from hapax_kube.binaries import ROOT

Helm = Callable[..., "subprocess.CompletedProcess[str]"]
SPACE, RELEASE, FULL = "zzspace", "zzrelease", "zzfull"


class Loader(yaml.SafeLoader):
    """Reads what Kubernetes' own parser reads: it takes more words for numbers and booleans than this library's."""


_NUMBER = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
Loader.add_implicit_resolver("tag:hapax,other", _NUMBER, list("-+.0123456789"))
Loader.add_implicit_resolver("tag:hapax,other", re.compile("^(y|Y|n|N)$"), list("yYnN"))
Loader.add_constructor("tag:hapax,other", lambda loader, node: ("not a text", node.value))


def objects(helm: Helm, release: str, space: str, *values: str) -> list[Any]:
    words = [word for value in values for word in ("--set-json", value)]
    done = helm("template", release, str(ROOT / "charts" / "hapax"), "--namespace", space, *words)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, Loader) if each]


def texts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf and its path, without sums of what has a name in it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(inner, f"{path}.{key}")
    elif isinstance(value, list):
        # The chart sorts the names of a certificate.
        for index, inner in enumerate(sorted(map(str, value)) if path.endswith(".dnsNames") else value):
            yield from texts(inner, f"{path}[{index}]")
    elif not (isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)):
        yield path, value


def renamed(value: Any, named: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {named(key): renamed(inner, named) for key, inner in value.items()}
    if isinstance(value, list):
        return [renamed(inner, named) for inner in value]
    return named(value) if isinstance(value, str) else value


EVERYTHING = (
    "admin.enabled=true", 'admin.tokensSecret="t"', "load.enabled=true", "spark.enabled=true",
    "serviceMonitor.enabled=true", "monitoring.rules.enabled=true", "monitoring.dashboard.enabled=true",
    'test.image={}', "crds.install=false")
VARIANTS: dict[str, tuple[str, ...]] = {
    "secure": (*EVERYTHING, f'spark.namespaces=["{SPACE}"]', f'operator.watchNamespaces=["{SPACE}", "other"]',
               f'users.namespaces=["{SPACE}"]'),
    "load balancers": (*EVERYTHING, "external.enabled=true", 'external.type="LoadBalancer"'),
    "routes": ("external.enabled=true", 'external.type="TLSRoute"', 'external.domain="log.example.com"',
               f'external.gateway={{"name":"{FULL}","namespace":"{SPACE}"}}'),
    "ingress": ("external.enabled=true", 'external.type="Ingress"', 'external.domain="log.example.com"',
                f'external.ingress.className="{FULL}"'),
    "cert-manager": ('tls.issuer="cert-manager"',),
    "plain": ("security.enabled=false", "external.enabled=true", f'image.pullSecrets=[{{"name":"{FULL}"}}]'),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("space", "release", "full"), [
    ("123", "on", "1e3"), ("null", "0x1f", "12"), ("1e3", "7", "no")])
def test_a_name_stays_a_text_whatever_yaml_takes_it_for(
    helm: Helm, variant: str, space: str, release: str, full: str
) -> None:
    """The same objects as with names that are words, with these in their place."""
    values = (*VARIANTS[variant], f'fullnameOverride="{FULL}"')

    def named(text: str) -> str:
        return text.replace(SPACE, space).replace(RELEASE, release).replace(FULL, full)

    plain = objects(helm, RELEASE, SPACE, *values)
    found = objects(helm, release, space, *map(named, values))
    assert len(found) == len(plain) > 20
    for before, after in zip(plain, found, strict=True):
        assert list(texts(after)) == list(texts(renamed(before, named))), after["kind"]
