"""Keeps a cluster running in the background (`hapax_kube up NODES`): one keeper outside of its sandbox, one inside.

    python -m hapax_kube.keeper FOLDER BINARIES NODES IMAGE ...      outside: runs the next one in a sandbox
    python -m hapax_kube.keeper inside FD FOLDER BINARIES NODES IMAGE ...

The API server listens inside. A socket that was created outside stays in the outer network, so the inner keeper
forwards its connections: kubectl and helm work from anywhere on the computer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from pathlib import Path

from hapax_kube.cluster import GATEWAY, KubeCluster
from hapax_kube.world import FOLDER, run_in_world


def outside(words: list[str]) -> int:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.set_inheritable(True)
    return run_in_world(
        [sys.executable, "-m", "hapax_kube.keeper", "inside", str(listener.fileno()), *words], os.environ,
        keep=[listener.fileno()])


def inside(descriptor: int, folder: Path, binaries: Path, nodes: int, images: list[Path]) -> None:
    world = Path(os.environ[FOLDER])
    listener = socket.socket(fileno=descriptor)
    cluster = KubeCluster(world, world.name, binaries, images, nodes).start()
    config = json.loads(cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://localhost:{listener.getsockname()[1]}"
    (folder / "admin.kubeconfig").write_text(json.dumps(config))
    (folder / "ready").touch()
    asyncio.run(pass_on(listener, GATEWAY, cluster.control.port))


async def pass_on(listener: socket.socket, host: str, port: int) -> None:
    async def both_ways(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there_reader, there_writer = await asyncio.open_connection(host, port)
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))

    server = await asyncio.start_server(both_ways, sock=listener)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[0] == "inside":
        inside(int(words[1]), Path(words[2]), Path(words[3]), int(words[4]), [Path(each) for each in words[5:]])
    else:
        sys.exit(outside(words))
