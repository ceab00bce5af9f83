"""The two steps of an etcd pod before etcd itself: what its volume has (`look`), and which member it becomes (`start`).

    python3 -m hapax_operator.etcd_start look
    python3 -m hapax_operator.etcd_start start

Each says what it found in a container's termination message, which the keeper of etcd reads (`etcd_keeper`):
`{"volume": "empty"}`, `{"volume": "damaged"}`, `{"volume": "CLUSTER:MEMBER"}`, and `{"runsAs": "founder"}` or
`{"runsAs": "CLUSTER:MEMBER"}`. Ids are hexadecimal.

`start` writes etcd's configuration file, into the member's folder: what is lost with the data cannot start without it.
It decides by facts alone that do not depend on the chart's values:

- A volume with a member's data continues as this member, unless the record says that it was removed.
- The pod that the record names as the founder founds the cluster. Its token has the pod's uid, so no two foundings
  have the same ids.
- Every other one waits until a member answers that it has a new member for this pod's address.

Environment: DATA (etcd's folder), SAID (the file of the message), POD_NAME, POD_UID, FOUNDER and REMOVED (of the
record), CLUSTER, SETTINGS (etcd's, JSON), PEERS (URLs of the members' peers, separated by commas).
It uses the standard library alone, because every member waits for it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

EMPTY: Final = "empty"
DAMAGED: Final = "damaged"
FOUNDER: Final = "founder"
CONFIGURATION: Final = "start.json"
"""In the folder `member` of etcd's data."""
_EVERY_S: Final = 0.5
_ASK_S: Final = 2.0
_METADATA: Final = 1
"""The type of a WAL record."""


def main(argv: Sequence[str]) -> int:
    # The first process of a container ignores signals that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    data, said = Path(os.environ["DATA"]), Path(os.environ["SAID"])
    if list(argv) == ["look"]:
        said.write_text(json.dumps({"volume": volume(data)}))
        return 0
    if list(argv) != ["start"]:
        print(__doc__, file=sys.stderr)
        return 2
    settings = json.loads(os.environ["SETTINGS"])
    become = decide(volume(data), os.environ)
    last = ""
    while become is None:
        become, why = _joins(settings, os.environ["PEERS"].split(","))
        if why != last:
            print(f"waiting: {why}", flush=True)
            last = why
        if become is None:
            time.sleep(_EVERY_S)
    if become.discards:
        shutil.rmtree(data / "member", ignore_errors=True)
    _write(data, {**settings, **become.initial})
    said.write_text(json.dumps({"runsAs": become.runs_as}))
    print(f"starts as {become.runs_as}", flush=True)
    return 0


class Become(NamedTuple):
    runs_as: str
    initial: Mapping[str, str]
    """Of etcd's settings."""
    discards: bool = False
    """Whether what is left in the folder is deleted first."""


def decide(found: str, environment: Mapping[str, str]) -> Become | None:
    """`found`: what the volume has. None: the pod must be told which member it is."""
    settings = json.loads(environment["SETTINGS"])
    name, url = settings["name"], settings["initial-advertise-peer-urls"]
    if found not in (EMPTY, DAMAGED):
        if found.partition(":")[2] in environment.get("REMOVED", "").split(","):
            return None
        # etcd reads these only where it has no data.
        return Become(found, {"initial-cluster": f"{name}={url}", "initial-cluster-state": "existing"})
    if found == EMPTY and environment["POD_UID"] == environment.get("FOUNDER"):
        return Become(FOUNDER, {
            "initial-cluster": f"{name}={url}", "initial-cluster-state": "new",
            "initial-cluster-token": f"{environment['CLUSTER']}-{environment['POD_UID']}"})
    return None


def member_for(url: str, name: str, cluster: str, members: Iterable[Mapping[str, Any]]) -> tuple[Become | None, str]:
    """Which member a pod at this URL may become, of the members that one of them lists; or why none."""
    known = list(members)
    mine = next((each for each in known if url in each["peerURLs"]), None)
    if mine is None:
        return None, f"cluster {cluster} has no member for {url}"
    if mine.get("name"):
        # This id has had data, which is not here.
        return None, f"member {mine['id']:x} for {url} was started before, and must be replaced"
    others = [f"{each.get('name') or each['id']}={each['peerURLs'][0]}" for each in known if each is not mine]
    return Become(f"{cluster}:{mine['id']:x}", {
        "initial-cluster": ",".join([*others, f"{name}={url}"]), "initial-cluster-state": "existing",
    }, discards=True), ""


def _joins(settings: Mapping[str, Any], peers: Iterable[str]) -> tuple[Become | None, str]:
    name, url = settings["name"], settings["initial-advertise-peer-urls"]
    why = "no member answers"
    for peer in peers:
        if peer == url:
            continue
        answer = _members(peer, settings.get("peer-transport-security"))
        if answer is not None:
            become, why = member_for(url, name, *answer)
            if become is not None:
                return become, ""
    return None, why


def _members(peer: str, tls: Mapping[str, Any] | None) -> tuple[str, list[Mapping[str, Any]]] | None:
    """The cluster's id and members, as this member knows them; None: it does not answer."""
    try:
        context = None
        if tls is not None:
            context = ssl.create_default_context(cafile=tls["trusted-ca-file"])
            context.load_cert_chain(tls["cert-file"], tls["key-file"])
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        with opener.open(f"{peer}/members", timeout=_ASK_S) as response:
            return response.headers["X-Etcd-Cluster-ID"], json.load(response)
    except (OSError, ValueError, urllib.error.URLError):
        return None


# --- the volume ---------------------------------------------------------------------------------------------------


def volume(data: Path) -> str:
    """EMPTY, DAMAGED, or `CLUSTER:MEMBER`."""
    member = data / "member"
    try:
        files = sorted((member / "wal").glob("*.wal"))
        if files:
            for kind, content in _records(files[0].open("rb").read(4096)):
                if kind == _METADATA:
                    ids = dict(_fields(content))
                    return f"{ids[2]:x}:{ids[1]:x}"
            return DAMAGED
        # etcd makes its log under another name first: what is there was never used.
        left = [each for each in member.rglob("*")
                if each.is_file() and each.name != CONFIGURATION and each.parent.name != "wal.tmp"]
    except FileNotFoundError:
        return EMPTY
    except (KeyError, IndexError, TypeError):
        return DAMAGED
    return DAMAGED if any(each.stat().st_size for each in left) else EMPTY


def _records(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and data of the first records of a write-ahead log (etcd's server/storage/wal)."""
    at = 0
    while at + 8 <= len(content):
        head = int.from_bytes(content[at : at + 8], "little")
        if not head:
            return
        length, padding = head & (2**56 - 1), (head >> 56) & 7 if head >> 63 else 0
        record = dict(_fields(content[at + 8 : at + 8 + length]))
        yield record.get(1, 0), record.get(3, b"")
        at += 8 + length + padding


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message that has numbers and bytes alone."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == 2:
            yield tag >> 3, message[at : at + value]
            at += value
        else:
            yield tag >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (message[at] & 0x7F) << shift
        shift += 7
        at += 1
        if message[at - 1] < 0x80:
            return value, at


def _write(data: Path, settings: Mapping[str, Any]) -> None:
    for folder in (data, data / "member"):
        folder.mkdir(mode=0o700, exist_ok=True)
    path = data / "member" / CONFIGURATION
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        json.dump(settings, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
