"""Bugs about outcomes that come too late, or never, and about calls that end early."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

_DECIDING = unit("client/test_deciding.py")
_DISK = unit("runtime/test_disk.py")
_FETCHING = unit("client/test_fetching.py")
_SENDER = unit("client/test_sender.py")
_REGISTRATION = unit("runtime/test_registration.py")

MUTANTS = (
    Mutant(
        "a decision that comes after the commit's time-out is forgotten", "an unknown outcome can be learnt",
        "client/engine.py",
        "                self.outcome.set_result(self._committed)\n",
        "                self.outcome.set_result(self._committed)\n                self.outcome = None\n",
        (_DECIDING,),
    ),
    Mutant(
        "a commit takes an abort's outcome for its own", "an unknown outcome can be learnt", "client/producer.py",
        "        if engine.outcome is None or not engine.committing:\n",
        "        if engine.outcome is None:\n",
        (_DECIDING,),
    ),
    Mutant(
        "a lookup of positions counts on its partitions", "a partition that is given up fails no other",
        "client/fetcher.py",
        "        partitions = [each for each in partitions if self._lacks_position(each)]",
        "        partitions = list(partitions)",
        (_FETCHING,),
    ),
    Mutant(
        "a standing whose outcome is unknown counts as not written", "rule 25", "runtime/registration.py",
        "while (self.record.standing, self.record.rack) != (self._standing, self._rack) or not self._written:\n",
        "while (self.record.standing, self.record.rack) != (self._standing, self._rack):\n",
        (_REGISTRATION,),
    ),
    Mutant(
        "a delayed write replaces a newer standing", "every write to etcd compares a revision",
        "runtime/registration.py",
        "                    [Compare(self._key, \"mod_revision\", self._revision)],\n",
        "                    [self.fence()],\n",
        (_REGISTRATION,),
    ),
    Mutant(
        "a failed sync is forgotten with its caller", "rule 13", "runtime/disk.py",
        "                self._sync_failure = error\n",
        "                pass\n",
        (_DISK,),
    ),
    Mutant(
        "groups of a coordinator that has just begun are not listed", "rule 11", "client/groups.py",
        "        addresses, _ = await self._cluster.rpc_addresses(fresh=True)",
        "        addresses, _ = await self._cluster.rpc_addresses()",
        (unit("client/test_coordinators.py"),),
    ),
    Mutant(
        "flush waits for what is sent after it", "a hang", "client/engine.py",
        "        while self._flushers and self._flushers[0][0] < first:\n",
        "        while self._flushers and first == math.inf:\n",
        (_SENDER,),
    ),
    Mutant(
        "flush returns while a batch is in flight whose time is over", "an unknown outcome can be learnt",
        "client/engine.py",
        "            if not effect.batch.in_flight:\n                self._unsettled.pop(effect.batch, None)\n",
        "            self._unsettled.pop(effect.batch, None)\n",
        (_SENDER,),
    ),
    Mutant(
        "a member of etcd that has another IP address is not found in time", "a hang", "runtime/etcd.py",
        "        if endpoint in self._endpoints and too_old and",
        "        if endpoint not in self._endpoints and too_old and",
        (unit("runtime/test_etcd_names.py"),),
    ),
    Mutant(
        "a position counts what an iteration has not returned", "a commit covers what was read", "client/fetcher.py",
        "        return position if held is None else held[0]\n",
        "        return position\n",
        (unit("client/test_iterating.py"),),
    ),
    Mutant(
        "a poll passes over what an iteration holds", "no record is hidden", "client/fetcher.py",
        "        if self._rest and (held := self.hand_out(limit)):\n            return held\n",
        "",
        (unit("client/test_iterating.py"),),
    ),
)
