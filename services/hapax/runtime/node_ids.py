"""A node's identity: the ranges of node ids, and the file `meta.properties` in every data folder (rule 22).

The file has Kafka's format (`version=1`, `cluster.id`, `node.id`, `directory.id`), so third-party tools can read it.
The directory id distinguishes the folders of one node: a process that restarts on the same folder may replace its
predecessor's registration before that one's lease has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hapax.codec.metadata import Role
from hapax.core.types import NodeId
from hapax.runtime.ports import Disk, Randomness
from hapax.runtime.settings import Settings

FIRST_NODE_ID: Final[dict[Role, int]] = {"broker": 0, "coordinator": 100, "pid": 200, "controller": 300}
"""First node id of each role. All roles share one space of ids, because clients see brokers and coordinators alike."""

FILE: Final = "meta.properties"

_IDS_OF_A_ROLE: Final = 100


class FolderRefused(Exception):
    """The data folder belongs to another cluster or node."""


@dataclass(frozen=True, slots=True)
class FolderIdentity:
    cluster_id: str
    node_id: NodeId | None
    """None: the folder's processes take any free id."""
    directory_id: str
    """32 hex digits, drawn when the folder was made."""


def fixed_id(settings: Settings) -> NodeId | None:
    """The node id from the settings; None if the process chooses it."""
    return None if settings.node_id_generation_enable else NodeId(settings.node_id)


def open_ids(settings: Settings) -> range:
    """The node ids that a process may choose from; empty if the settings fix its id."""
    first = settings.node_id
    return range(first, first + _IDS_OF_A_ROLE) if settings.node_id_generation_enable else range(0)


async def claim_folder(disk: Disk, cluster_id: str, node_id: NodeId | None, random: Randomness) -> FolderIdentity:
    """Reads the folder's identity, or writes it where the folder is new. Raises FolderRefused."""
    if not disk.exists(FILE):
        identity = FolderIdentity(cluster_id, node_id, random.randbytes(16).hex())
        lines = ["version=1", f"cluster.id={cluster_id}", *([] if node_id is None else [f"node.id={node_id}"]),
                 f"directory.id={identity.directory_id}", ""]  # fmt: skip
        await disk.write_atomically(FILE, "\n".join(lines).encode())
        return identity
    file = disk.open(FILE)
    try:
        text = file.read(0, file.size()).decode("utf-8", "replace")
    finally:
        file.close()
    fields = decode_properties(text)
    for name, wanted in (("cluster.id", cluster_id), ("node.id", None if node_id is None else str(node_id))):
        if wanted is not None and fields.get(name) != wanted:
            raise FolderRefused(
                f"this data folder's {FILE} says {name}={fields.get(name)}, but this process has {name}={wanted}: "
                "refusing to touch it"
            )
    return FolderIdentity(cluster_id, node_id, fields.get("directory.id", ""))


def decode_properties(text: str) -> dict[str, str]:
    """Java's `name=value` lines, as far as Kafka writes them."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            fields[name.strip()] = value.strip()
    return fields
