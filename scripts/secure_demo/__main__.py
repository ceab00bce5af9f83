"""`make secure-demo`: a cluster that is closed by default, its tenants, and what happens to those who try.

1. A local cluster starts with `--secure`: TLS on every port, logins, permissions, users in etcd.
2. Two tenants get a password each, and permission for what begins with their names. Both write.
3. One tenant tries to use what belongs to the other; strangers try to come in. Each is told why not.
4. Every certificate of the cluster and the password of a tenant are replaced while both write.
5. A quota slows one tenant down, and not the other.
6. The audit log is read. All records are read back and counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from scripts.secure_demo.load import PER_FLUSH, SIZE, Count, Writer, counted
from scripts.secure_demo.stage import BROKERS, SETTINGS, TENANTS, DemoFailure, Stage, audited, numbers

from hapax.client import HapaxError
from hapax.client.acls import EVERY_ACL
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import user
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.local.cluster import LocalCluster
from hapax.local.folder import LocalClusterError

QUOTA: Final = 2_000
"""Bytes in a second on each broker."""
PACE_S: Final = 3.0
LIMITED_S: Final = 8.0
_WINDOWS_S: Final = 11
"""What a client that was idle may write at once under a quota, in seconds' worth."""
MOST: Final = BROKERS * (QUOTA * (_WINDOWS_S + LIMITED_S) / SIZE + PER_FLUSH) / LIMITED_S
"""Records in a second under the quota, on average over the time that is measured. What exceeds it is stored first."""
SHOWN: Final = ("login_failed", "refused", "acl_created", "user_changed", "quota_changed")
"""Of the audit log, one line each."""
_OPEN: Final = "[red]it was let in[/]"


class Demo:
    def __init__(self, stage: Stage, audit: Path, console: Console) -> None:
        self.stage, self.audit, self.console = stage, audit, console
        self.result: dict[str, Any] = {"refused": {}, "went_on": {}}
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self._began:5.1f} s[/]  {text}", soft_wrap=True)

    async def run(self) -> None:
        stage = self.stage
        self.say(f"a closed cluster: {len(stage.state.processes)} processes; every port has TLS, every client logs in, "
                 "every call needs a permission")
        for name, topic in TENANTS.items():
            await stage.let_in(name)
            self.say(f"tenant [bold]{name}[/]: a password, and permission for the topics, groups and transactional ids "
                     f"whose names begin with {name}- ({topic})")
        shop = Writer(stage.settings("shop"), TENANTS["shop"], "shop-writer")
        bank = Writer(stage.settings("bank", client__id="bank-writer"), TENANTS["bank"])
        async with shop.running(), bank.running():
            await self._went_on("both write", shop, bank)
            await self._try_to_come_in()
            await self._rotate(shop, bank)
            await self._limit(shop, bank)
        self.result["count"] = {
            name: (await counted(stage.settings(name), writer))._asdict()
            for name, writer in (("shop", shop), ("bank", bank))}

    async def _went_on(self, when: str, *writers: Writer) -> None:
        going = all([await each.goes_on() for each in writers])
        self.result["went_on"][when] = going
        self.say(f"{when}: " + ("[green]their records are stored[/]" if going else "[red]a writer has stopped[/]"))

    async def _try_to_come_in(self) -> None:
        stage, shop = self.stage, TENANTS["shop"]
        grab = Binding(
            ResourceType.TOPIC, shop, Pattern.LITERAL, user("bank"), "*", Operation.ALL, Permission.ALLOW)
        bank = stage.settings("bank")
        trust = {key: value for key, value in bank.items() if not key.startswith("sasl.")}
        wrong = {**trust, "sasl.mechanism": bank["sasl.mechanism"], "sasl.username": "bank", "sasl.password": "guess"}
        topic, cluster = "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"
        tries = {
            f"bank deletes {shop}": (stage.refused(bank, lambda admin: admin.delete_topics([shop])), topic),
            f"bank describes {shop}": (stage.refused(bank, lambda admin: admin.describe_topic(shop)), topic),
            "bank gives itself a permission": (stage.refused(bank, lambda admin: admin.create_acls([grab])), cluster),
            "bank lists the permissions": (stage.refused(bank, lambda admin: admin.list_acls(EVERY_ACL)), cluster),
            "a stranger who guesses a password": (stage.refused(wrong), "invalid credentials"),
            "a client without TLS": (
                stage.refused({"bootstrap.servers": bank["bootstrap.servers"]}), "the peer speaks TLS"),
            "bank's certificate at a broker's service port": (stage.knocked("bank"), "unknown ca"),
        }
        for what, (attempt, why) in tries.items():
            self._told(what, await attempt, why)

    def _told(self, what: str, sentence: str, why: str) -> None:
        """`why`: what the sentence must name. A cluster that does not answer refuses nothing."""
        self.result["refused"][what] = sentence if why in sentence else ""
        self.say(f"{what}: " + (
            f"[green]refused[/]: {escape(sentence)}" if why in sentence
            else f"[red]refused for another reason[/]: {escape(sentence)}" if sentence else _OPEN))

    async def _rotate(self, shop: Writer, bank: Writer) -> None:
        renewed = await self.stage.renew_certificates()
        self.say(f"the certificates and keys of {renewed} processes are replaced; no process restarts")
        await self._went_on("after the new certificates", shop, bank)
        former = await self.stage.give_password("shop")
        self.say("the password of shop is replaced")
        await self._went_on("after the new password", shop, bank)
        given = self.stage.settings("shop", sasl__password=former)
        del given["sasl.password.file"]
        self._told("shop with its former password", await self.stage.refused(given), "invalid credentials")

    async def _limit(self, shop: Writer, bank: Writer) -> None:
        before = await bank.pace(PACE_S)
        await self.stage.limit("bank", QUOTA)
        slow, other = await asyncio.gather(bank.pace(LIMITED_S), shop.pace(LIMITED_S))
        told = await self.stage.throttled_s()
        await self.stage.limit("bank", None)
        self.result["quota"] = {"before": before, "limited": slow, "other": other, "throttled_s": told}
        self.say(f"a quota for bank, {QUOTA / 1000:.0f} kB/s on each broker: {before:.0f} records/s before, "
                 f"{slow:.0f} with it; shop writes {other:.0f}; clients were told to wait {told:.1f} s")
        await self._went_on("after the quota is removed", shop, bank)

    def conclude(self) -> list[str]:
        """After the cluster has stopped, so that its audit log is whole. The reasons why the demo failed."""
        events = audited(self.audit)
        self.result["audit"] = dict(sorted(numbers(events).items()))
        self.say(f"the audit log has {len(events)} lines: "
                 + ", ".join(f"{count} {event}" for event, count in self.result["audit"].items()))
        for kind in SHOWN:
            found = next((each for each in events if each["event"] == kind), None)
            if found is not None:
                line = json.dumps({key: value for key, value in found.items() if key not in ("v", "cluster")})
                self.console.print(f"[dim]         {escape(line)}[/]", soft_wrap=True)
        self.console.print(_table(self.result["count"]))
        return failures(self.result)


def failures(result: dict[str, Any]) -> list[str]:
    """The reasons why the demo failed; empty if it succeeded."""
    found = [f"not refused, or for another reason: {what}"
             for what, sentence in result["refused"].items() if not sentence]
    found += [f"a writer stopped: {when}" for when, going in result["went_on"].items() if not going]
    found += [
        f"{name}: {count['lost']} of {count['written']} records are lost, {count['duplicated']} doubled"
        for name, count in result["count"].items() if not Count(**count).sound]
    quota = result["quota"]
    if quota["limited"] > MOST or quota["throttled_s"] <= 0:
        found.append("the quota slowed no one down")
    found += [f"the audit log has no line {kind}" for kind in SHOWN if not result["audit"].get(kind)]
    return found


def _table(counts: dict[str, Any]) -> Table:
    drawn = Table(title="The outcome for every record", title_justify="left")
    for heading in ("tenant", "written", "lost", "duplicated"):
        drawn.add_column(heading, justify="left" if heading == "tenant" else "right")
    for name, count in counts.items():
        style = [f"[green]{count[k]}[/]" if count[k] == 0 else f"[red]{count[k]:,}[/]" for k in ("lost", "duplicated")]
        drawn.add_row(name, f"{count['written']:,}", *style)
    return drawn


def main() -> int:
    parser = argparse.ArgumentParser(description="Show a closed cluster, its tenants and those who are refused")
    parser.add_argument("--dir", type=Path, default=Path("build/secure-demo"), help="folder for logs and the verdict")
    folder: Path = parser.parse_args().dir.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    console = Console()
    logging.basicConfig(filename=folder / "clients.log")
    began = time.monotonic()
    cluster = LocalCluster(folder / "cluster")
    audit = folder / "audit"
    try:
        try:
            cluster.up(port=0, brokers=BROKERS, coordinators=1, owned=True, secure=True,
                       settings=(*SETTINGS, f"audit.log.dir={audit}"))
            demo = Demo(Stage(cluster, folder), audit, console)
            asyncio.run(demo.run())
        finally:
            cluster.down()
    except (DemoFailure, HapaxError, LocalClusterError) as error:
        console.print(f"[red]the demo could not be carried out:[/] {error}")
        return 2
    problems = demo.conclude()
    demo.result["seconds"] = round(time.monotonic() - began, 1)
    (folder / "verdict.json").write_text(json.dumps(demo.result, indent=2) + "\n")
    console.print(f"{demo.result['seconds']:.0f} s in all; logs, audit log and verdict in {folder}")
    for problem in problems:
        console.print(f"[red]{escape(problem)}[/]")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
