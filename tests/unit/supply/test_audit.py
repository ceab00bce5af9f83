"""`make audit-deps` against a server on loopback that answers as OSV does, and with a database in the form of Go's."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripts.supply.audit import EXCEPTIONS, main
from scripts.supply.databases import govulncheck
from scripts.supply.pins import Pin, go_modules, pinned

ROOT = Path(__file__).resolve().parents[3]
HASH = "    --hash=sha256:" + 64 * "0" + "\n"
JINJA: dict[str, Any] = {
    "id": "PYSEC-2021-66",
    "details": "A regular expression of the urlize filter backtracks without a bound.",
    "aliases": ["CVE-2020-28493", "GHSA-g3rq-g295-4j3m"],
    "modified": "2023-11-08T04:04:00.000000Z", "published": "2021-02-01T20:15:00Z", "schema_version": "1.6.0",
    "references": [{"type": "WEB", "url": "https://github.com/pallets/jinja/pull/1343"}],
    "affected": [{
        "package": {"name": "jinja2", "ecosystem": "PyPI", "purl": "pkg:pypi/jinja2"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.11.3"}]}],
        "versions": ["2.10", "2.11.1", "2.11.2"],
        "database_specific": {"source": "https://github.com/pypa/advisory-database"},
    }],
}  # fmt: skip
LODASH: dict[str, Any] = {
    "id": "GHSA-35jh-r3h4-6jhm", "summary": "Command injection in lodash", "aliases": ["CVE-2021-23337"],
    "modified": "2023-11-08T04:05:00Z", "published": "2021-05-06T16:05:51Z", "schema_version": "1.6.0",
    "affected": [{
        "package": {"name": "lodash", "ecosystem": "npm", "purl": "pkg:npm/lodash"},
        "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "4.17.21"}]}],
    }],
}  # fmt: skip
LOG4J: dict[str, Any] = {
    "id": "GHSA-jfh8-c2jp-5v3q", "summary": "Remote code injection in Log4j", "aliases": ["CVE-2021-44228"],
    "modified": "2024-06-25T02:31:00Z", "published": "2021-12-10T00:40:56Z", "schema_version": "1.6.0",
    "affected": [{
        "package": {"name": "org.apache.logging.log4j:log4j-core", "ecosystem": "Maven",
                    "purl": "pkg:maven/org.apache.logging.log4j/log4j-core"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "2.13.0"}, {"fixed": "2.15.0"}]}],
    }],
}  # fmt: skip
KNOWN = {
    ("PyPI", "jinja2", "2.11.2"): JINJA, ("npm", "lodash", "4.17.20"): LODASH,
    ("Maven", "org.apache.logging.log4j:log4j-core", "2.14.1"): LOG4J,
}  # fmt: skip


class Osv(http.server.BaseHTTPRequestHandler):
    """POST /v1/query of api.osv.dev, as far as it is asked here: by name and version, or by a purl with a version."""

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["content-length"])))
        package = query["package"]
        if purl := package.get("purl"):
            kind, name, version = purl.removeprefix("pkg:").replace("@", "/").partition("/")[0], "", purl.split("@")[1]
            name = purl.removeprefix(f"pkg:{kind}/").split("@")[0].replace("/", ":")
            key = ({"npm": "npm", "maven": "Maven"}[kind], name, version)
        else:
            key = (package["ecosystem"], package["name"], query["version"])
        found = KNOWN.get(key)
        # A page may be empty and still have a successor.
        if found and purl and "page_token" not in query:
            answer: dict[str, Any] = {"next_page_token": "second"}
        else:
            answer = {"vulns": [found]} if found else {}
        body = json.dumps(answer).encode()
        self.send_response(200 if self.path == "/v1/query" else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def osv() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Osv) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / EXCEPTIONS).parent.mkdir(parents=True)
    (tmp_path / EXCEPTIONS).write_text("")
    (tmp_path / "requirements.lock").write_text(f"idna==3.10 \\\n{HASH}Jinja2==2.11.2 \\\n{HASH}    # via flask\n")
    return tmp_path


def exception(repository: Path, until: str, **fields: str) -> None:
    words = {"id": "CVE-2020-28493", "package": "jinja2", "reason": "No template of a user is rendered.", **fields}
    lines = [f'{name} = "{value}"' for name, value in words.items() if value]
    (repository / EXCEPTIONS).write_text("\n".join(["[[exception]]", *lines, f"until = {until}", ""]))


def audit(repository: Path, osv: str, *words: str, today: str = "2026-11-26") -> int:
    return main([f"--root={repository}", f"--osv={osv}", f"--today={today}", *words])


def test_a_vulnerable_version_fails(repository: Path, osv: str, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "images" / "one").mkdir(parents=True)
    shutil.copy(repository / "requirements.lock", repository / "images" / "one")
    assert audit(repository, osv) == 1
    said = capsys.readouterr().out
    for lock in ("requirements.lock", "images/one/requirements.lock"):
        assert (f"VULNERABLE jinja2 2.11.2 ({lock}): PYSEC-2021-66, CVE-2020-28493, GHSA-g3rq-g295-4j3m; fixed in "
                "2.11.3") in said  # fmt: skip
    assert "2 packages and Go modules checked, 2 problems, 0 questions without an answer" in said


def test_the_fixed_version_passes(repository: Path, osv: str) -> None:
    (repository / "requirements.lock").write_text(f"jinja2==3.1.6 ; python_version < '3' \\\n{HASH}jinja2==3.1.5\n")
    assert audit(repository, osv) == 0


def test_an_exception_counts_until_its_date(repository: Path, osv: str, capsys: pytest.CaptureFixture[str]) -> None:
    exception(repository, "2026-12-31")
    assert audit(repository, osv) == 0
    said = capsys.readouterr().out
    assert "EXCEPTED CVE-2020-28493 (jinja2) until 2026-12-31: No template of a user is rendered." in said
    assert audit(repository, osv, today="2026-12-31") == 0
    assert audit(repository, osv, today="2027-01-01") == 1
    said = capsys.readouterr().out
    assert "EXPIRED exception CVE-2020-28493" in said and "VULNERABLE jinja2" in said


def test_an_exception_past_its_date_fails_even_if_nothing_is_known_any_more(repository: Path, osv: str) -> None:
    (repository / "requirements.lock").write_text("jinja2==3.1.6\n")
    exception(repository, "2026-11-25")
    assert audit(repository, osv) == 1


@pytest.mark.parametrize("fields", [{"package": "idna"}, {"lock": "images/a/requirements.lock"}, {"id": "CVE-2020-1"}])
def test_an_exception_covers_only_what_it_names(repository: Path, osv: str, fields: dict[str, str]) -> None:
    exception(repository, "2026-12-31", **fields)
    assert audit(repository, osv) == 1


@pytest.mark.parametrize(("fields", "until", "why"), [
    ({"reason": ""}, "2026-12-31", "`id` and `reason` are needed"),
    ({}, '"soon"', "`until` must be a date"),
    ({}, "2028-01-01", "more than 190 days away"),
    ({"id": "*"}, "2026-12-31", "`*` needs a `lock` and no `package`"),
    ({"package": ""}, "2026-12-31", "`package` is needed"),
    ({"fixed": "2.11.3"}, "2026-12-31", "unknown fields"),
])  # fmt: skip
def test_an_exception_without_a_reason_a_date_or_a_package_fails(
    repository: Path, osv: str, capsys: pytest.CaptureFixture[str], fields: dict[str, str], until: str, why: str
) -> None:
    exception(repository, until, **fields)
    assert audit(repository, osv) == 1
    assert why in capsys.readouterr().err


def test_node_and_java_packages_are_asked_about_too(
    repository: Path, osv: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "requirements.lock").unlink()
    (repository / "package-lock.json").write_text(json.dumps({"lockfileVersion": 3, "packages": {
        "": {"name": "ours", "version": "1.0.0"},
        "node_modules/lodash": {"version": "4.17.20"}, "node_modules/a/node_modules/@b/c": {"version": "1.0.0"},
    }}))  # fmt: skip
    (repository / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><properties><log.version>2.14.1</log.version></properties>'
        "<dependencies><dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId>"
        "<version>${log.version}</version></dependency></dependencies></project>")
    assert Pin("npm", "@b/c", "1.0.0") in pinned(repository)
    assert audit(repository, osv) == 1
    said = capsys.readouterr().out
    assert "lodash 4.17.20 (package-lock.json): GHSA-35jh-r3h4-6jhm, CVE-2021-23337; fixed in 4.17.21" in said
    assert "log4j-core 2.14.1 (pom.xml): GHSA-jfh8-c2jp-5v3q, CVE-2021-44228; fixed in 2.15.0" in said


@pytest.mark.parametrize("path", ["/v2", ""])
def test_without_an_answer_it_fails_and_says_so(
    repository: Path, osv: str, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    """A server that does not know the call, and a port that nothing listens on."""
    (repository / "requirements.lock").write_text("idna==3.10\n")
    (repository / "package-lock.json").write_text('{"packages": {"node_modules/ms": {"version": "2.1.3"}}}')
    away = osv.replace("/v1", path) if path else "http://127.0.0.1:9/v1"
    assert audit(repository, away) == 3
    said = capsys.readouterr().out
    assert "NOT CHECKED 1 Python packages: pip-audit" in said and "NOT CHECKED 1 npm packages" in said
    assert "0 packages and Go modules checked" in said


def serve_go_module(proxy: Path, name: str, version: str, source: str) -> None:
    """The files of Go's module proxy for one module."""
    folder = proxy / name / "@v"
    folder.mkdir(parents=True)
    module = f"module {name}\n\ngo 1.21\n"
    (folder / f"{version}.info").write_text(json.dumps({"Version": version}))
    (folder / f"{version}.mod").write_text(module)
    with zipfile.ZipFile(folder / f"{version}.zip", "w") as archive:
        archive.writestr(f"{name}@{version}/go.mod", module)
        archive.writestr(f"{name}@{version}/inner.go", source)


def test_a_go_module_that_a_program_imports_is_found(
    repository: Path, osv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("go") is None:
        pytest.skip("there is no Go toolchain")
    (repository / "requirements.lock").unlink()
    module = repository / "program"
    module.mkdir()
    (module / "go.mod").write_text("module example.org/program\n\ngo 1.21\n\nrequire example.org/inner v1.2.3\n")
    (module / "main.go").write_text('package main\n\nimport "example.org/inner"\n\nfunc main() { inner.Do() }\n')
    govulncheck()  # built before Go's settings are those of this test
    serve_go_module(tmp_path / "proxy", "example.org/inner", "v1.2.3", "package inner\n\nfunc Do() {}\n")
    monkeypatch.setenv("GOPROXY", (tmp_path / "proxy").as_uri())
    monkeypatch.setenv("GONOSUMDB", "*")
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GOFLAGS", "-modcacherw")
    subprocess.run(["go", "mod", "download", "all"], cwd=module, check=True)
    subprocess.run(["go", "mod", "tidy"], cwd=module, check=True)
    database = tmp_path / "osv"
    database.mkdir()
    (database / "GO-2026-0001.json").write_text(json.dumps({
        "schema_version": "1.3.1", "id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z",
        "published": "2026-01-01T00:00:00Z", "aliases": ["CVE-2026-0001"], "summary": "A fault", "details": "A fault",
        "affected": [{
            "package": {"name": "example.org/inner", "ecosystem": "Go"},
            "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "1.2.4"}]}],
            "ecosystem_specific": {"imports": [{"path": "example.org/inner", "symbols": ["Do"]}]},
        }],
        "database_specific": {"url": "https://pkg.go.dev/vuln/GO-2026-0001", "review_status": "REVIEWED"},
    }))  # fmt: skip
    words = (f"--go-database={database}",)
    code = audit(repository, osv, *words)
    said = capsys.readouterr().out
    assert code == 1, said
    assert "example.org/inner v1.2.3 (program/go.mod): GO-2026-0001, CVE-2026-0001; fixed in v1.2.4" in said
    exception(repository, "2026-12-31", id="GO-2026-0001", package="example.org/inner")
    assert audit(repository, osv, *words) == 0
    (module / "main.go").write_text('package main\n\nimport "example.org/none"\n\nfunc main() { none.Do() }\n')
    assert audit(repository, osv, *words) == 3
    assert "NOT CHECKED govulncheck of program/go.mod" in capsys.readouterr().out
    exception(repository, "2026-12-31", id="*", package="", lock="program/go.mod")
    assert audit(repository, osv, *words) == 0
    assert "EXCEPTED not audited: * (program/go.mod)" in capsys.readouterr().out


def test_every_lock_file_of_the_repository_is_read() -> None:
    locks = {lock for places in pinned(ROOT).values() for lock in places}
    images = {f"images/{name}/requirements.lock" for name in ("hapax", "hapax-load", "hapax-spark")}
    clients = {"tests/clients/other/kafkajs/package-lock.json", "tests/clients/other/java/pom.xml"}
    assert {"requirements.lock", *images, *clients} <= locks
    modules = {each.lock: each.packages for each in go_modules(ROOT)}
    assert modules["scripts/etcd/go.mod"] == ("go.etcd.io/etcd/server/v3",)
    assert modules["tests/clients/other/franz_go/go.mod"] == ("./...",)
    assert all(modules.values()), modules
