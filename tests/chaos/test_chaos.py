"""A slice of `make chaos`: some scenarios of each sort with both clients, and runs in which the checker must find what
is wrong."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hapax.codec.batch import iterate_batches
from hapax.local.etcd import find_etcd
from hapax.local.folder import LocalClusterError
from hapax.log.layout import LOG
from hapax_chaos.catalogue import GROUP, SECURE, Scenario, scenarios, secure_scenarios, without_namespaces
from hapax_chaos.faults import TARGETS, Fault, Run, freeze_in_transaction, kill
from hapax_chaos.groups import execution
from hapax_chaos.network import missing
from hapax_chaos.scenario import RunVerdict
from hapax_chaos.secure_faults import revoke
from hapax_chaos.world import Layout, World
from hapax_mutants import MUTANTS

SLICE = (
    "kill@leader", "freeze@coordinator", "stop@leader", "sync-fails@leader", "torn-tail@leader",
    "net-drop@leader>follower", "net-resets@clients>leader", "clock-jumps@nodes", "zombie@client",
    "kill@leader+kill@coordinator",
)  # fmt: skip
REQUESTS = ("late@END_TXN", "unanswered@PRODUCE", "late@TXN_OFFSET_COMMIT", "twice@anything")
SMALL_PROXIED = Layout(
    brokers=1, coordinators=1, controllers=1, replication=1, namespaces=False, proxied=True,
)  # fmt: skip
NO_FENCING = ("an old epoch may write", "a delayed EndTxn decides the next transaction")
ZOMBIES = 8
SECURE_SLICE = (("secure:rotate+kill@leader", "native"), ("secure:revoke-topic@client", "librdkafka"))
ROOT = Path(__file__).parents[2]
SMALL = Layout(brokers=1, coordinators=1, controllers=1, replication=1, namespaces=False)
OF_GROUPS = (("consumer:kill@group-coordinator", "native"), ("classic:kill@member", "librdkafka"))
SMALL_SECURE = replace(SMALL, secure=True, login="password")
SMALL_GROUP = replace(SMALL, settings=GROUP.settings)
FORMER = (
    "classic: a transaction of a former generation commits positions",
    "classic: a transaction of a member that was removed commits positions",
)


@pytest.fixture(autouse=True)
def etcd() -> None:
    try:
        find_etcd(sound_only=True)
    except LocalClusterError as error:
        pytest.skip(str(error))


def run(
    chosen: list[tuple[Scenario, str]], folder: Path, services: Path | None = None, *,
    until: Callable[[RunVerdict], bool] = lambda verdict: False, **options: str,
) -> list[RunVerdict]:  # fmt: skip
    """One after the other in one world, up to the first whose verdict is what `until` looks for."""

    async def play() -> list[RunVerdict]:
        world = World(chosen[0][0].layout, folder / "world", 1, services)
        verdicts = []
        try:
            await world.open()
            for number, (scenario, client) in enumerate(chosen):
                histories = folder / f"histories-{number}"
                histories.mkdir()
                verdicts.append(await execution(world, scenario, client, number, histories, **options).run())
                if verdicts[-1].cluster_unusable or until(verdicts[-1]):
                    break
        finally:
            await world.close()
        return verdicts

    return asyncio.run(play())


def failures(verdicts: list[RunVerdict]) -> list[str]:
    return [f"{v.scenario} {v.client}: {v.findings} ({'; '.join(v.happened)})" for v in verdicts if not v.passed]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("names", [SLICE, REQUESTS], ids=["nodes", "requests"])
def test_a_slice_of_all_scenarios_finds_no_anomaly(names: tuple[str, ...], tmp_path: Path) -> None:
    known = {scenario.name: scenario for scenario in scenarios()}
    chosen = [known[name] for name in names]
    why = missing()
    if why:
        print(f"scenarios about packets are left out here: {why}")
        chosen = [here for here in map(without_namespaces, chosen) if here is not None]
    pairs = [(scenario, ("native", "librdkafka")[number % 2]) for number, scenario in enumerate(chosen)]
    verdicts = run(pairs, tmp_path)
    assert failures(verdicts) == []
    assert len(verdicts) == len(pairs)


@pytest.mark.timeout(400)
def test_groups_of_members_copy_each_input_once(tmp_path: Path) -> None:
    known = {scenario.name: scenario for scenario in scenarios()}
    loopback = replace(GROUP, namespaces=False)
    verdicts = run([(replace(known[name], layout=loopback), client) for name, client in OF_GROUPS], tmp_path)
    assert failures(verdicts) == []
    assert len(verdicts) == len(OF_GROUPS)


async def _nothing(run: Run) -> None:
    """No fault at all."""


def _lose_half_of_all_copies() -> Fault:
    """Half of the batches, not the last ones: those may be of transactions that nobody acknowledged, or markers that a
    coordinator sends again."""

    async def fault(run: Run) -> None:
        name = run.world.leader(run.topic)
        run.world.kill(name)
        for partition in range(2):
            logs = sorted((run.world.data(name) / f"{run.topic}-{partition}").glob(f"*{LOG}"))
            batches = [(log, at) for log in logs for at, _ in iterate_batches(log.read_bytes())]
            last, cut = batches[len(batches) // 2]
            os.truncate(last, cut)
            for log in logs[logs.index(last) + 1 :]:
                for path in log.parent.glob(f"{log.stem}.*"):
                    path.unlink()
        run.world.start(name)

    return fault


@pytest.mark.timeout(200)
@pytest.mark.parametrize("client", ["native", "librdkafka"])
def test_reading_what_is_not_committed_is_found(client: str, tmp_path: Path) -> None:
    (verdict,) = run([(Scenario("nothing", _nothing, SMALL), client)], tmp_path, isolation="read_uncommitted")
    assert any(finding.startswith("G1a: ") for finding in verdict.findings), verdict


@pytest.mark.timeout(200)
def test_what_at_least_once_doubles_is_found(tmp_path: Path) -> None:
    unanswered = replace(next(s for s in scenarios() if s.name == "unanswered@PRODUCE"), layout=SMALL_PROXIED)
    (verdict,) = run([(unanswered, "at-least-once")], tmp_path)
    assert any(finding.startswith("duplicate: ") for finding in verdict.findings), verdict


@pytest.mark.timeout(200)
def test_acknowledged_records_that_every_copy_lost_are_found(tmp_path: Path) -> None:
    (verdict,) = run([(Scenario("lost", _lose_half_of_all_copies(), SMALL), "native")], tmp_path)
    assert not verdict.passed, verdict
    assert any(f.startswith(("lost-write: ", "unseen: ", "inconsistent-offsets: ")) for f in verdict.findings), verdict


@pytest.mark.timeout(200)
def test_what_a_zombie_does_that_nobody_fences_is_found(tmp_path: Path) -> None:
    services = tmp_path / "services"
    shutil.copytree(ROOT / "services", services, ignore=shutil.ignore_patterns("__pycache__"))
    unfenced = [mutant for mutant in MUTANTS if mutant.name in NO_FENCING]
    assert len(unfenced) == len(NO_FENCING)
    for mutant in unfenced:
        mutant.put_in(services)
    zombie = replace(next(s for s in scenarios() if s.name == "zombie@client"), layout=SMALL)
    wrong = ("zombie-write: ", "G1a: ", "lost-write: ", "duplicate: ")

    def found(verdict: RunVerdict) -> bool:
        return any(finding.startswith(wrong) for finding in verdict.findings)

    # What one zombie does may go unseen: its commit has to meet a transaction of its successor that is open.
    verdicts = run([(zombie, "native")] * ZOMBIES, tmp_path, services, until=found)
    assert any(map(found, verdicts)), verdicts


def doubled(verdict: RunVerdict) -> bool:
    return any(finding.startswith("doubled-output: ") for finding in verdict.findings)


@pytest.mark.timeout(200)
def test_positions_outside_of_the_transaction_are_found(tmp_path: Path) -> None:
    careless = Scenario("careless", kill(TARGETS["client"], 0.1, 3), SMALL_GROUP, "consumer")
    verdicts = run([(careless, "native")] * 3, tmp_path, until=doubled, work="copy-carelessly")
    assert any(map(doubled, verdicts)), verdicts


@pytest.mark.timeout(400)
def test_what_a_former_member_commits_is_found(tmp_path: Path) -> None:
    services = tmp_path / "services"
    shutil.copytree(ROOT / "services", services, ignore=shutil.ignore_patterns("__pycache__"))
    former = [mutant for mutant in MUTANTS if mutant.name in FORMER]
    assert len(former) == len(FORMER)
    for mutant in former:
        mutant.put_in(services)
    frozen = Scenario("frozen", freeze_in_transaction(TARGETS["client"], 8.0), SMALL_GROUP, "classic")
    # A freeze after the positions were sent harms nothing: they are pending, and the next owner waits for them.
    verdicts = run([(frozen, "librdkafka")] * ZOMBIES, tmp_path, services, until=doubled, work="copy-slowly")
    assert any(map(doubled, verdicts)), verdicts


@pytest.mark.timeout(400)
def test_certificates_and_permissions_change_under_faults(tmp_path: Path) -> None:
    known = {scenario.name: scenario for scenario in secure_scenarios()}
    loopback = replace(SECURE, namespaces=False)
    verdicts = run([(replace(known[name], layout=loopback), client) for name, client in SECURE_SLICE], tmp_path)
    assert failures(verdicts) == []
    assert len(verdicts) == len(SECURE_SLICE)


@pytest.mark.timeout(200)
def test_a_right_that_does_not_end_is_found(tmp_path: Path) -> None:
    services = tmp_path / "services"
    shutil.copytree(ROOT / "services", services, ignore=shutil.ignore_patterns("__pycache__"))
    (mutant,) = (each for each in MUTANTS if each.name == "an ended right is remembered")
    mutant.put_in(services)
    revoked = Scenario("revoked", revoke(TARGETS["client"], "topic"), SMALL_SECURE)
    (verdict,) = run([(revoked, "native")], tmp_path, services)
    assert any(finding.startswith("not-shut-out: ") for finding in verdict.findings), verdict
    assert any(finding.startswith("not-told: ") for finding in verdict.findings), verdict


@pytest.mark.timeout(200)
def test_a_world_that_is_open_is_not_called_secure(tmp_path: Path) -> None:
    """Its scenarios would find nothing, whatever they do to users and permissions."""
    without = replace(SMALL_SECURE, settings=(("authorizer.class.name", ""),))
    with pytest.raises(RuntimeError, match=r"not closed: a program without a permission creates a topic$"):
        run([(Scenario("none", revoke(TARGETS["client"], "topic"), without), "native")], tmp_path)
