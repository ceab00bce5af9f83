"""The recipes of docs/security.md let clients in: they are taken from the page, and only names of hosts and folders are
others."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from clients.logins import AUDIENCE, ISSUER, MECHANISMS, Logins, logins
from clients.other import java_command
from clients.other.kafka_tools import TOOLS, class_of
from clients.secured import secured
from conftest import end_cluster, start_cluster
from hapax.client.blocking import Consumer
from hapax.client.properties import read_properties
from hapax.local.cluster import LocalCluster
from hapax.local.secure import CLIENTS, SecureFolder
from security import ROOT, long

PAGE = ROOT / "docs" / "security.md"
SECTION = "Let a client in"
RECIPES = ("", "Java", "librdkafka", "Python", "Spark on Kubernetes", "REST")
"""Headings below the section; "": its own text."""
_FENCE = re.compile(r"(?P<before>[^\n]*)\n\n```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LOADER = "system:serviceaccount:team:loader"
_PATIENCE_S = 500
"""Spark, on a machine that has other things to do too."""
_NAME = re.compile(r"`([\w-]+\.\w+)`")


class Block(NamedTuple):
    language: str
    text: str
    name: str
    """Of the file that it is said to be; empty: none."""


def recipes() -> dict[str, list[Block]]:
    (section,) = re.findall(rf"^## {SECTION}$(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    parts = re.split(r"^### (.+)$", section, flags=re.MULTILINE)
    titled = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    found = {}
    for title, text in titled.items():
        blocks = []
        for fence in _FENCE.finditer(text):
            names = _NAME.findall(fence["before"]) if fence["before"].endswith(":") else []
            blocks.append(Block(fence["language"], fence["text"], names[0] if names else ""))
        found[title] = blocks
    return found


class Site:
    """A closed cluster, and a machine with what the page says that it has."""

    def __init__(self, cluster: LocalCluster, folder: Path, users: Logins) -> None:
        self.cluster, self.folder, self.users = cluster, folder, users
        self.files = SecureFolder(cluster.folder)
        self.bootstrap = cluster.bootstrap
        rest = cluster.status().process("admin-0").port
        self._others = {
            "kafka.example.com:9092": self.bootstrap, "rest.example.com:8090": f"127.0.0.1:{rest}",
            "/etc/app": str(folder), "/var/run/secrets/hapax": str(folder), "/var/lib/app": str(folder)}
        (folder / "ca.crt").write_bytes(self.files.file(f"{CLIENTS}.crt").read_bytes())
        (folder / "shop.password").write_text("secret\n")
        (folder / "admin.properties").write_text(self.files.profile.read_text())
        (folder / "token").write_text(users.token(LOADER))

    def localized(self, text: str) -> str:
        for there, here in self._others.items():
            text = text.replace(there, here)
        return text

    def run(self, command: list[str]) -> str:
        tokens = [line.split() for line in self.cluster.folder.rest_tokens().read_text().splitlines()]
        environment = {
            **os.environ, "HAPAX_BOOTSTRAP": self.bootstrap, "TOKEN": next(
                token for _, role, token in tokens if role == "read-only"),
            "PATH": os.pathsep.join((str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S,
            stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def follow(self, blocks: list[Block]) -> str:
        """Writes the files and runs the programs and commands, in order. Returns what was printed."""
        said = ""
        for number, block in enumerate(blocks):
            text = self.localized(block.text)
            if block.name:
                (self.folder / block.name).write_text(text)
            elif block.language == "python":
                program = self.folder / f"program{number}.py"
                program.write_text(text)
                said += self.run([sys.executable, str(program)])
            elif block.language == "sh":
                said += self.run(["bash", "-euo", "pipefail", "-c", text])
        return said

    def kafka_scripts(self) -> None:
        """Kafka's own scripts, as far as the page calls them."""
        command = java_command("tools", "Tools")[:-1]
        (self.folder / "bin").mkdir(exist_ok=True)
        for tool in TOOLS:
            script = self.folder / "bin" / f"{tool}.sh"
            script.write_text(f'#!/bin/sh\nexec {shlex.join([*command, class_of(tool)])} "$@"\n')
            script.chmod(0o755)

    def values(self, topic: str, count: int) -> list[str]:
        """Of committed records; waits for as many."""
        settings = {
            **read_properties(self.files.profile), "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        with Consumer(settings) as consumer:
            consumer.assign(consumer.partitions(topic))
            seen: list[str] = []
            while len(seen) < count:
                records = consumer.poll(20_000)
                assert records, f"only {seen}"
                seen += [(record.value or b"").decode() for record in records]
        return seen


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    users = logins(secured(tmp_path_factory.mktemp("issuer")))
    cluster = start_cluster(
        tmp_path_factory.mktemp("closed"), secure=True, admin=1, port=0, settings=[
            "sasl.enabled.mechanisms=" + ",".join(MECHANISMS), f"sasl.oauthbearer.expected.issuer={ISSUER}",
            f"sasl.oauthbearer.expected.audience={AUDIENCE}",
            f"sasl.oauthbearer.jwks.endpoint.url={users.key_set.as_uri()}",
            "public.rpc.auth=passwords,oauthbearer"])
    made = Site(cluster, tmp_path_factory.mktemp("app"), users)
    made.follow(recipes()[""])
    yield made
    end_cluster(cluster)


def test_the_page_has_the_recipes() -> None:
    found = recipes()
    assert tuple(found) == RECIPES
    assert {title: [block.language for block in blocks] for title, blocks in found.items()} == {
        "": ["sh"], "Java": ["properties", "sh"], "librdkafka": ["python", "sh"], "Python": ["python"] * 3,
        "Spark on Kubernetes": ["yaml", "sh", "python", "sh"], "REST": ["sh"]}
    assert [block.name for block in found["Java"]] == ["shop.properties", ""]


def test_librdkafka(site: Site) -> None:
    site.follow(recipes()["librdkafka"])
    assert "from librdkafka" in site.values("shop-orders", 1)


@pytest.mark.parametrize(("number", "value"), [
    (0, "from kafka-python"), (1, "from aiokafka"), (2, "from the native client")])
def test_python(site: Site, number: int, value: str) -> None:
    site.follow([recipes()["Python"][number]])
    assert value in site.values("shop-orders", 1)


def test_rest(site: Site) -> None:
    assert "shop-orders" in {each["name"] for each in json.loads(site.follow(recipes()["REST"]))["items"]}


@long
@pytest.mark.timeout(300)
def test_java(site: Site) -> None:
    site.kafka_scripts()
    site.follow(recipes()["Java"])
    assert "from Java" in site.values("shop-orders", 1)


@long
@pytest.mark.timeout(600)
def test_spark_on_kubernetes(site: Site) -> None:
    """With the same token, from a file that the test writes."""
    before = site.values("shop-orders", 0)
    site.follow(recipes()["librdkafka"])
    site.follow(recipes()["Spark on Kubernetes"])
    assert "from librdkafka" in site.values("shop-copies", 1), before
