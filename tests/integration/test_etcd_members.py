"""`EtcdMembers` against etcd: what is meant for one cluster changes no other one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from hapax.runtime.etcd_members import EtcdMembers, EtcdRefused
from integration.etcd_process import EtcdProcess
from integration.waiting import until


async def test_a_member_of_another_cluster_neither_answers_nor_is_changed(
    shared_etcd: EtcdProcess, tmp_path: Path
) -> None:
    """Without TLS, a pod's address may be given to another release's member at any moment."""
    client, endpoint = EtcdMembers(), shared_etcd.endpoint

    async def answers() -> bool:
        with contextlib.suppress(EtcdRefused):
            return (await client.status(endpoint)).leader != 0
        return False

    try:
        await until(answers, "etcd")
        ours = (await client.status(endpoint)).cluster
        before = await client.members(endpoint, ours, confirmed=True)
        for confirmed in (True, False):
            assert await client.members(endpoint, ours, confirmed=confirmed) == before
            with pytest.raises(EtcdRefused, match="of another cluster"):
                await client.members(endpoint, ours + 1, confirmed=confirmed)
        with pytest.raises(EtcdRefused, match="of another cluster"):
            await client.add_learner(endpoint, ours + 1, "http://127.0.0.1:1")
        with pytest.raises(EtcdRefused, match="of another cluster"):
            await client.snapshot(endpoint, ours + 1, tmp_path / "etcd-1.db")
        assert await client.members(endpoint, ours, confirmed=True) == before and not os.listdir(tmp_path)
        assert await client.snapshot(endpoint, ours, tmp_path / "etcd-1.db") > 0
    finally:
        await client.close()
