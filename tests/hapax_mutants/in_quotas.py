"""Bugs by which a quota does not hold, holds more than it says, or costs memory without a bound."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

METERS = unit("core/quota/test_meters.py")
ENTITIES = unit("core/quota/test_entities.py")
QUOTAS = unit("kafka/test_quotas.py")
HISTORIES = unit("kafka/test_quota_histories.py")
TIME = unit("kafka/test_quotas_of_time.py")
LOGINS = unit("kafka/test_quotas_and_logins.py")
PEER = unit("wire/test_peer.py")

MUTANTS = (
    Mutant(
        "a quota is told and not enforced", "KIP-219", "kafka/server.py",
        "        self._muted = loop.call_at(until, self._unmute)\n",
        "        self._muted = loop.call_at(until, self._unmute)\n        self.connection.resume_reading()\n",
        (QUOTAS,),
    ),
    Mutant(
        "a quota is stored and nothing is charged to it", "KIP-13", "kafka/quotas.py",
        "        if meter.add(amount, now_ms) <= free:\n",
        "        if meter.add(0, now_ms) <= free:\n",
        (QUOTAS,),
    ),
    Mutant(
        "a throttled answer is held back until its client may be read", "KIP-219", "kafka/server.py",
        "        order.popleft()\n        if chunks is not None:\n            self.connection.send(chunks)\n",
        "        order.popleft()\n        if chunks is not None and ctx.throttled:\n            asyncio.get_running_loop().call_later(1, self.connection.send, chunks)\n        elif chunks is not None:\n            self.connection.send(chunks)\n",
        (QUOTAS,),
    ),
    Mutant(
        "each client id that a client makes up has a meter", "docs/quotas.md", "core/quota/meters.py",
        "            if self._names.get(maker, 0) >= self._most_names:\n",
        "            if False:\n",
        (METERS,),
    ),
    Mutant(
        "meters are never given up", "docs/quotas.md", "core/quota/meters.py",
        "        if len(self._meters) >= self._most:\n            self._give_up_oldest()\n",
        "",
        (METERS,),
    ),
    Mutant(
        "a connection keeps charging a meter that was given up", "docs/quotas.md", "kafka/quotas.py",
        "        if found is _UNKNOWN or (found is not None and not found[0].live):\n",
        "        if found is _UNKNOWN:\n",
        (QUOTAS,),
    ),
    Mutant(
        "the quota of a user outweighs that of the user with the client id", "KIP-55", "core/quota/index.py",
        "            rate = quotas.get((USER, who, CLIENT_ID, client_id))\n            if rate is not None:\n                return Limit(rate, user, client_id, False)\n",
        "            rate = quotas.get((USER, who))\n            if rate is not None:\n                return Limit(rate, user, None, False)\n            rate = quotas.get((USER, who, CLIENT_ID, client_id))\n            if rate is not None:\n                return Limit(rate, user, client_id, False)\n",
        (ENTITIES,),
    ),
    Mutant(
        "another connection of a throttled consumer gets records", "KIP-219", "kafka/api/fetch.py",
        "throttled=wait_ms > 0)\n",
        "throttled=False)\n",
        (QUOTAS,),
    ),
    Mutant(
        "changes beyond the quota are made and only delayed", "KIP-599", "controller/mutations.py",
        "            refused.append(bucket.wait_ms(limit.rate, now_ms) > allowed_ms)\n",
        "            refused.append(False)\n",
        (QUOTAS,),
    ),
    Mutant(
        "older clients change partitions on credit without an end", "KIP-599", "controller/mutations.py",
        "        allowed_ms = 0 if request.strict else self._most_debt_ms\n",
        "        allowed_ms = 0 if request.strict else 2**40\n",
        (HISTORIES,),
    ),
    Mutant(
        "a quota next to 0 ends each connection of its clients", "KIP-546", "core/quota/meter.py",
        "    return LONGEST_MS if wait_ms >= LONGEST_MS else math.ceil(wait_ms)\n",
        "    return min(LONGEST_MS, math.ceil(wait_ms))\n",
        (METERS,),
    ),
    Mutant(
        "an address in two spellings has two quotas", "KIP-612", "core/quota/entities.py",
        "    return plain_host(text)\n",
        "    return text\n",
        (ENTITIES,),
    ),
    Mutant(
        "a quota that was corrected still holds for who waits by the old one", "docs/quotas.md", "kafka/server.py",
        "            session.quotas_changed()\n",
        "            pass\n",
        (HISTORIES,),
    ),
    Mutant(
        "a client is told to wait once more for what its answer took", "KIP-219", "kafka/server.py",
        "        left_ms = math.ceil((self._muted.when() - asyncio.get_running_loop().time()) * 1000 - _ROUNDING_MS)\n",
        "        left_ms = 10_000\n        self.mute(left_ms)\n",
        (HISTORIES,),
    ),
    Mutant(
        "a coordinator that asks before it writes is throttled", "rule 17", "kafka/table.py",
        "        api.handler = self._noticing(handler) if row.need.nodes_pass else handler\n",
        "        api.handler = handler\n",
        (HISTORIES,),
    ),
    Mutant(
        "replication waits for what clients have read", "rule 17", "kafka/api/fetch.py",
        "    if request.replica_id >= 0:\n        ctx.uncharged = True\n        return request\n",
        "",
        (HISTORIES,),
    ),
    Mutant(
        "a node that has just registered waits as long as its principal's clients", "rule 17", "kafka/server.py",
        "        if self.unproven and wait_ms > _LONGEST_UNPROVEN_MS:\n",
        "        if False:\n",
        (HISTORIES,),
    ),
    Mutant(
        "a password that is checked lets a throttled connection be read", "KIP-219", "kafka/server.py",
        "        if not (self._paused or self._muted is not None or self._held_back or self.closed):\n",
        "        if not (self._paused or self._held_back or self.closed):\n",
        (LOGINS,),
    ),
    Mutant(
        "a quota's time that is over lets a connection be read amid its login", "KIP-368", "kafka/server.py",
        "        if not (self._paused or self._muted is not None or self._held_back or self.closed):\n",
        "        if not (self._paused or self._muted is not None or self.closed):\n",
        (LOGINS,),
    ),
    Mutant(
        "who waits for his turn to connect has no time left to log in", "KIP-612", "kafka/sasl_session.py",
        "        if self._timer is not None:  # it can log in only after that\n",
        "        if False:\n",
        (LOGINS,),
    ),
    Mutant(
        "logins that fail use up what others need to log in", "KIP-124", "kafka/quotas.py",
        "(ctx.uncharged and key in _NAMELESS)",
        "False",
        (LOGINS,),
    ),
    Mutant(
        "calls of logins are a way around a quota", "KIP-124", "kafka/quotas.py",
        "(ctx.uncharged and key in _NAMELESS)",
        "key in _NAMELESS",
        (LOGINS,),
    ),
    Mutant(
        "connections beyond the rate of their address displace those who log in", "abuse case 4", "kafka/server.py",
        "if refused or security.sasl is None",
        "if security.sasl is None",
        (LOGINS,),
    ),
    Mutant(
        "what a handler does after it has waited costs its client nothing", "KIP-124", "kafka/quotas.py",
        "            spent(stopwatch() - began)\n",
        "            pass\n",
        (TIME,),
    ),
    Mutant(
        "a topic that is made at first use holds up its client's records", "KIP-599", "kafka/quotas.py",
        "            if waits:\n                ctx.throttle(answer.wait_ms)\n",
        "            ctx.throttle(answer.wait_ms)\n",
        (QUOTAS,),
    ),
    Mutant(
        "made-up addresses give up clients' meters", "docs/quotas.md", "kafka/quotas.py",
        "        meter = self._connections.of(",
        "        meter = self._rates.of(",
        (HISTORIES,),
    ),
    Mutant(
        "of two changes of a quota at the same time one is refused", "KIP-546", "controller/quotas.py",
        "        async with self._turn:\n            return await self._alter(request)\n",
        "        return await self._alter(request)\n",
        (HISTORIES,),
    ),
    Mutant(
        "the nodes' own connections are throttled", "rule 17", "kafka/quotas.py",
        "        ctx.session.node = shown is not None\n",
        "",
        (QUOTAS,),
    ),
    Mutant(
        "a client that shows any proof is charged nothing", "rule 17", "kafka/quotas.py",
        "        ctx.session.node = shown is not None\n",
        "        ctx.session.node = True\n",
        (QUOTAS,),
    ),
    Mutant(
        "a quota that is removed stays in force", "KIP-546", "runtime/quota_image.py",
        "        changed = self.stored.pop(key, None)\n",
        "        changed = self.stored.get(key)\n",
        (QUOTAS,),
    ),
    Mutant(
        "a throttled client sends on", "KIP-219", "wire/peer.py",
        "self._release = self._loop.call_at(until, self._released)", "self._release = None",
        (PEER,),
    ),
)
