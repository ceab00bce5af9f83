"""What happens to certificates, users and permissions while programs work, in a secure world (see `trust`).

Two rules hold besides those of the history: who was shut out writes nothing more, and what it left open is aborted when
its time is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from hapax.client import Admin, Consumer, HapaxError, TopicPartition
from hapax.core.access.bindings import Binding
from hapax.core.access.resources import Operation, ResourceType
from hapax_chaos.clients import TRANSACTION_TIMEOUT_MS
from hapax_chaos.faults import Fault, Run, Target
from hapax_chaos.trust import TOKENS_LAST_S, Trust, allowed, exactly, name_of, number_of
from hapax_chaos.world import World

_TAKEN_S: Final = 20.0
"""Within this time, all processes show new certificates."""
_GRACE_S: Final = 2.0
"""After a change that was answered: within this time all nodes know it."""
_LATE_S: Final = 3.0
"""A transaction is aborted within a second of its time-out; the harness looks every now and then."""
_SHUT_OUT_S: Final = TRANSACTION_TIMEOUT_MS / 1000 + _LATE_S
_REFUSED: Final = {
    "topic": ("TOPIC_AUTHORIZATION_FAILED",), "id": ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED",),
    "group": ("GROUP_AUTHORIZATION_FAILED",),
}
"""Which of the protocol's errors a program must be told."""


def trust_of(run: Run) -> Trust:
    assert run.world.trust is not None
    return run.world.trust


@asynccontextmanager
async def administrator(run: Run) -> AsyncIterator[Admin]:
    async with Admin(run.world.client(default__api__timeout__ms="20000")) as admin:
        yield admin


# --- certificates -------------------------------------------------------------------------------------------------


def rotate(times: int = 1, *, pause_s: float = 0.5, wait: bool = True) -> Fault:
    """New certificates for everything. `wait`: until all processes show them. Else what follows meets some that do and
    some that do not."""

    async def fault(run: Run) -> None:
        for _ in range(times):
            run.say("new certificates for all")
            trust_of(run).renew()
            if wait:
                await shown_everywhere(run)
            await asyncio.sleep(pause_s)
        if not wait:
            await shown_everywhere(run)

    return fault


def rotate_late(fault: Fault) -> Fault:
    """Certificates are replaced while another fault lasts, and must be in use when that is over."""

    async def both(run: Run) -> None:
        lasting = asyncio.ensure_future(fault(run))
        await asyncio.sleep(0.3)
        run.say("new certificates for all")
        trust_of(run).renew()
        await lasting
        await run.world.heal()
        await shown_everywhere(run)

    return both


async def shown_everywhere(run: Run) -> None:
    outdated = ["nothing was looked at"]
    try:
        async with asyncio.timeout(_TAKEN_S):
            while outdated := await trust_of(run).outdated():
                run.world.supervise()
                await asyncio.sleep(0.1)
    except TimeoutError:
        run.complaints.append(f"old-certificate: {_TAKEN_S:.0f} s after the replacement: {', '.join(outdated)}")
    await run.world.reload_certificates()


def rotate_authorities(amid: Fault | None = None) -> Fault:
    """Another authority is trusted, then it issues all certificates, then the former one is not trusted any more.
    `amid`: what happens after the first step and after the second one."""

    async def fault(run: Run) -> None:
        trust = trust_of(run)
        before = await _reloads(run.world)
        if not before:
            run.complaints.append("old-authority: no process tells how often it has taken files over")
        run.say("a second authority")
        trust.secure.add_authorities()
        await _reloaded(run, before)
        await _restart_etcd(run)
        _restart_librdkafka(run)
        if amid is not None:
            await amid(run)
        run.say("certificates of the second authority")
        trust.renew()
        await shown_everywhere(run)
        _restart_librdkafka(run)
        if amid is not None:
            await amid(run)
        before = await _reloads(run.world)
        run.say("the first authority is gone")
        trust.secure.drop_former_authorities()
        await _reloaded(run, before)
        await _restart_etcd(run)

    return fault


async def _restart_etcd(run: Run) -> None:
    """It reads whom it trusts only when it starts. A planned stop takes it some seconds, in which leases end."""
    await run.world.reload_certificates()
    run.world.kill("etcd")
    run.world.start("etcd")


def _restart_librdkafka(run: Run) -> None:
    """It reads its files only when it starts. The native client reads them for each connection."""
    for name in run.clients:
        if run.kind_of(name) == "librdkafka":
            run.world.kill(name)
            run.start_client(name)


async def _reloads(world: World) -> dict[tuple[str, int, str], float]:
    """How often each process has taken files over, by process and listener."""
    found = {}
    for process in world.processes.values():
        if process.kind != "etcd":
            for line in await world.metrics(process):
                if line.startswith("hapax_tls_reloads_total{"):
                    name, _, number = line.rpartition(" ")
                    found[process.name, process.pid, name] = float(number)
    return found


async def _reloaded(run: Run, before: dict[tuple[str, int, str], float]) -> None:
    """Every listener has taken files over since, in each process that still lives."""
    left: list[str] = []

    async def waiting() -> list[str]:
        run.world.supervise()
        now = await _reloads(run.world)
        return [f"{key[0]} {key[2]}" for key, number in before.items() if now.get(key, number + 1) <= number]

    try:
        async with asyncio.timeout(_TAKEN_S):
            while left := await waiting():  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.1)
    except TimeoutError:
        run.complaints.append(f"old-authority: {_TAKEN_S:.0f} s after the replacement: {', '.join(left)}")


# --- users --------------------------------------------------------------------------------------------------------


def change_password(target: Target, times: int = 3) -> Fault:
    """Sessions of the former password end. The program goes on with the new one."""

    async def fault(run: Run) -> None:
        name = name_of(number_of(target(run)))
        async with administrator(run) as admin:
            for _ in range(times):
                run.say(f"another password for {name}")
                await trust_of(run).set_password(admin, name)
                await asyncio.sleep(1.5)

    return fault


def remove_user(target: Target) -> Fault:
    """A user is removed amid transactions and made again later, with another password."""

    async def fault(run: Run) -> None:
        program = target(run)
        name = name_of(number_of(program))
        async with administrator(run) as admin:
            run.say(f"remove {name}")
            await trust_of(run).remove(admin, name)
            await _shut_out(run, program)
            run.say(f"make {name} again")
            await trust_of(run).set_password(admin, name)

    return fault


def short_tokens(seconds: float = 3.0, rounds: int = 4) -> Fault:
    """Tokens that end soon, and others in their place shortly before: sessions end with them (KIP-368)."""

    async def fault(run: Run) -> None:
        for _ in range(rounds):
            run.say(f"tokens that end in {seconds} s")
            trust_of(run).write_tokens(seconds)
            await asyncio.sleep(seconds * 0.7)
        trust_of(run).write_tokens(TOKENS_LAST_S)

    return fault


# --- permissions --------------------------------------------------------------------------------------------------


def revoke(target: Target, what: str) -> Fault:
    """A program's permission is taken away amid transactions, and given back when its transaction's time is over.
    `what`: topic (to write it), id (the transactional id), group."""

    async def fault(run: Run) -> None:
        program = target(run)
        taken = _permission(run, program, what)
        async with administrator(run) as admin:
            run.say(f"revoke {taken}")
            began = time.monotonic()
            try:
                await admin.delete_acls(exactly(taken))
                if what == "group":  # it may still write
                    await asyncio.sleep(_SHUT_OUT_S)
                else:
                    await _shut_out(run, program)
                _is_told(run, program, _REFUSED[what], began)
            finally:
                run.say("give it back")
                await _again(admin, taken)

    return fault


async def _again(admin: Admin, binding: Binding) -> None:
    while True:
        try:
            await admin.create_acls([binding])
            return
        except HapaxError:
            await asyncio.sleep(0.2)


def _permission(run: Run, program: str, what: str) -> Binding:
    if what == "topic":
        return allowed(program, ResourceType.TOPIC, run.topic, Operation.WRITE)
    if what == "id":
        return allowed(program, ResourceType.TRANSACTIONAL_ID, program, Operation.WRITE)
    return allowed(program, ResourceType.GROUP, run.group or f"group-of-{program}", Operation.READ)


def _is_told(run: Run, program: str, errors: Sequence[str], since: float) -> None:
    said = [str(o.value) for o in run.told(program) if o.f == "debug" and o.type == "ok" and o.time >= since]
    for error in errors:
        if not any(error in each for each in said):
            run.complaints.append(f"not-told: {program} has seen no {error}, but {sorted(set(said))[:5]}")


# --- who is shut out ----------------------------------------------------------------------------------------------


async def _shut_out(run: Run, program: str) -> None:
    """Waits for longer than a transaction may last. Nothing of the program is committed meanwhile, and nothing that it
    left open stays open."""
    since = time.monotonic() + _GRACE_S
    await asyncio.sleep(_SHUT_OUT_S)
    # A transaction without records needs no permission and no connection.
    late, begun = [], {}
    for o in run.told(program):
        if o.f == "txn" and o.type == "invoke":
            begun[o.process] = o.time
        elif o.f == "txn" and o.type == "ok" and begun[o.process] > since and any(m[0] == "send" for m in o.value):
            late.append(o.value)
    if late:
        run.complaints.append(f"not-shut-out: {program} committed {len(late)} transactions, the last: {late[-1]}")
    if open_ones := await _open_for_long(run):
        run.complaints.append(f"hanging: {', '.join(open_ones)}")


async def _open_for_long(run: Run) -> list[str]:
    """Partitions whose last stable offset does not pass the present high watermark within a second or two. Others go on
    writing."""
    where = [TopicPartition(run.topic, p) for p in range(2)]  # type: ignore[arg-type]
    async with Consumer(run.world.client(isolation__level="read_uncommitted")) as outside, Consumer(
        run.world.client(isolation__level="read_committed")
    ) as inside:
        ends = await outside.end_offsets(where)
        left = dict(ends)

        async def stable() -> None:
            nonlocal left
            found = await inside.end_offsets(where)
            left = {p: end for p, end in ends.items() if found[p] < end}

        deadline = time.monotonic() + _LATE_S
        await stable()
        while left and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            await stable()
    return [f"{p.topic}-{p.partition} has a transaction open below {end}" for p, end in left.items()]

