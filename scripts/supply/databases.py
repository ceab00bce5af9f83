"""Asks the databases of known vulnerabilities. What cannot be asked is `NotChecked`, never an empty answer."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name
from scripts.supply.pins import GoModule, Pin

OSV: Final = "https://api.osv.dev/v1"
GO_DATABASE: Final = "golang.org/x/vulndb"
"""The Go project's database is a Go module too, so that it can be had where Go modules can."""
OLDEST_GO_DATABASE: Final = datetime.timedelta(days=60)
TIMEOUT_S: Final = 30
TOOL: Final = Path(__file__).parent / "govulncheck"


class NotChecked(Exception):
    """A database gave no answer. The message says which, and why."""


@dataclass(frozen=True, order=True)
class Finding:
    lock: str
    package: str
    version: str
    ids: tuple[str, ...]
    """The database's own id first, then other names of the same vulnerability, such as its CVE."""
    fixed: str
    """The versions that do not have it, or an empty text."""

    def __str__(self) -> str:
        fixed = f"fixed in {self.fixed}" if self.fixed else "no fixed version"
        return f"{self.package} {self.version} ({self.lock}): {', '.join(self.ids)}; {fixed}"


def ask_about_python(pins: Iterable[Pin], osv: str = OSV) -> dict[Pin, list[tuple[tuple[str, ...], str]]]:
    """By pip-audit, which asks OSV. Answers (ids, fixed versions) for each pin. Raises NotChecked."""
    asked = {(pin.name, pin.version): pin for pin in pins}
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "requirements.txt"
        names.write_text("".join(f"{name}=={version}\n" for name, version in sorted(asked)))
        done = subprocess.run(
            [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--progress-spinner=off", "--format=json",
             "--vulnerability-service=osv", f"--osv-url={osv}/query", f"--cache-dir={folder}", f"--timeout={TIMEOUT_S}",
             f"--requirement={names}"],
            capture_output=True, text=True, check=False)  # fmt: skip
    try:
        answer = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        raise NotChecked(f"pip-audit at {osv}: {_last_line(done.stderr)}") from None
    # pip-audit ends with success when it was told nothing about a package. Here that is no success.
    skipped = [f"{each['name']} ({each['skip_reason']})" for each in answer if "skip_reason" in each]
    if skipped:
        raise NotChecked(f"pip-audit was told nothing about {', '.join(skipped)}")
    found = {
        asked[(canonicalize_name(each["name"]), each["version"])]: [
            ((known["id"], *sorted(known["aliases"])), ", ".join(known["fix_versions"])) for known in each["vulns"]]
        for each in answer
    }  # fmt: skip
    if missing := set(asked.values()) - set(found):
        raise NotChecked(f"pip-audit left out {', '.join(sorted(pin.name for pin in missing))}")
    return found


def ask_osv(pin: Pin, osv: str = OSV) -> list[tuple[tuple[str, ...], str]]:
    """Answers (ids, fixed versions) of what OSV knows about the package at this version. Raises NotChecked."""
    found: list[tuple[tuple[str, ...], str]] = []
    query: dict[str, Any] = {"package": {"purl": pin.purl}}
    while True:
        try:
            request = urllib.request.Request(
                f"{osv}/query", json.dumps(query).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                answer = json.load(response)
        except (OSError, ValueError) as error:  # URLError and HTTPError are OSErrors
            raise NotChecked(f"{osv}: {error}") from error
        for each in answer.get("vulns", ()):
            if "withdrawn" not in each:
                found.append(((each["id"], *sorted(each.get("aliases", ()))), _fixed(pin, each)))
        if not (token := answer.get("next_page_token")):
            return found
        query["page_token"] = token


def _fixed(pin: Pin, vulnerability: dict[str, Any]) -> str:
    return ", ".join(
        event["fixed"]
        for affected in vulnerability.get("affected", ()) if affected.get("package", {}).get("name") == pin.name
        for each in affected.get("ranges", ()) if each["type"] != "GIT"
        for event in each["events"] if "fixed" in event)  # fmt: skip


# --- Go -----------------------------------------------------------------------------------------------------------


def go_database(today: datetime.date) -> Path:
    """The newest database that Go's module proxy has. Raises NotChecked without Go, without it, or with an old one."""
    done = _go("mod", "download", "-json", f"{GO_DATABASE}@latest", cwd=Path(tempfile.gettempdir()))
    answer = json.loads(done)
    made = datetime.datetime.strptime(answer["Version"].split("-")[1], "%Y%m%d%H%M%S").date()
    if today - made > OLDEST_GO_DATABASE:
        raise NotChecked(
            f"the newest {GO_DATABASE} to be had is of {made}, more than {OLDEST_GO_DATABASE.days} days ago")
    return Path(answer["Dir"]) / "data" / "osv"


def govulncheck() -> Path:
    """The program, built once into the user's cache from a module whose sums go.sum pins. Raises NotChecked."""
    made_of = b"".join((TOOL / name).read_bytes() for name in ("go.mod", "go.sum"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "hapax"
    program = cache / f"govulncheck-{hashlib.sha256(made_of).hexdigest()[:16]}" / "govulncheck"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            _go("build", "-mod=readonly", "-trimpath", "-o", f"{folder}/", "tool", cwd=TOOL)
            (Path(folder) / "govulncheck").replace(program)
    return program


def ask_about_go(root: Path, module: GoModule, database: Path) -> tuple[list[Finding], list[Finding]]:
    """(findings of packages that the programs import, findings of Go's own library). Raises NotChecked.

    govulncheck also reports modules of which no package is imported. Their code is not in the programs.
    """
    done = subprocess.run(
        [govulncheck(), f"-db=file://{database}", "-scan=package", "-format=json", *module.packages],
        cwd=(root / module.lock).parent, capture_output=True, text=True, check=False,
        env={**os.environ, "GOFLAGS": "-mod=readonly"})  # fmt: skip
    if done.returncode:
        raise NotChecked(f"govulncheck of {module.lock}: {' '.join(done.stderr.split())[-400:]}")
    known: dict[str, tuple[str, ...]] = {}
    findings: set[tuple[str, str, str, str]] = set()
    for message in _json_values(done.stdout):
        if osv := message.get("osv"):
            known[osv["id"]] = (osv["id"], *sorted(osv.get("aliases", ())))
        elif (finding := message.get("finding")) and "package" in finding["trace"][0]:
            place = finding["trace"][0]
            findings.add((place["module"], place.get("version", ""), finding["osv"], finding.get("fixed_version", "")))
    every = [Finding(module.lock, package, version, known[osv], fixed) for package, version, osv, fixed in findings]
    return (sorted(each for each in every if each.package != "stdlib"),
            sorted(each for each in every if each.package == "stdlib"))  # fmt: skip


def _go(*words: str, cwd: Path) -> str:
    if shutil.which("go") is None:
        raise NotChecked("there is no Go toolchain")
    done = subprocess.run(["go", *words], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotChecked(f"go {words[0]}: {_last_line(done.stderr) or _last_line(done.stdout)}")
    return done.stdout


def _json_values(text: str) -> Iterator[dict[str, Any]]:
    decoder, at = json.JSONDecoder(), 0
    while match := re.compile(r"\s*(?=\S)").match(text, at):
        value, at = decoder.raw_decode(text, match.end())
        yield value


def _last_line(text: str) -> str:
    lines: Sequence[str] = text.strip().splitlines() or ["it ended without a word"]
    return lines[-1][-400:]
