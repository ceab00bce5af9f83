"""Bugs in the native consumer's fetch sessions and in its choice of the replica to read from."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import Mutant, unit

TOLD: Final = "KIP-227: no record is hidden"
TWICE: Final = "a topic made again: no record twice"
ENDS: Final = "a session's memory is limited"
REPLICA: Final = "KIP-392: no record is hidden"
POSITION: Final = "KIP-392: no record twice"
MACHINE: Final = unit("client/test_fetch_session.py")
FETCHES: Final = unit("client/test_session_fetches.py")
FORMER: Final = unit("client/test_former_topics.py")
REPLICAS: Final = unit("client/test_reading_replicas.py")

MUTANTS = (
    Mutant(
        "a node that lags behind brings a former topic back", TWICE, "client/cluster.py",
        "        return known_id != _id_in(answer) and revision < known_at\n",
        "        return False\n",
        (FORMER,),
    ),
    Mutant(
        "with a name a client forgets how new its absence was", TWICE, "client/cluster.py",
        "                self._forgotten_at = max(self._forgotten_at, known_at)\n",
        "",
        (FORMER,),
    ),
    Mutant(
        "a cluster that was put back is never believed", "a hang", "client/cluster.py",
        "        if outdated and self.nodes and self.nodes.keys() <= self._behind:\n",
        "        if False:\n",
        (FORMER,),
    ),
    Mutant(
        "one node that lags behind is believed like a cluster that was put back", TWICE, "client/cluster.py",
        "self.nodes.keys() <= self._behind:",
        "self.nodes.keys() & self._behind:",
        (FORMER,),
    ),
    Mutant(
        "nodes that lagged behind before count as if they did now", TWICE, "client/cluster.py",
        "            self._newest = revision\n            self._behind.clear()\n",
        "            self._newest = revision\n",
        (FORMER,),
    ),
    Mutant(
        "a client keeps asking a node that lags behind", "a hang", "client/cluster.py",
        "        first = node_id not in self._behind\n",
        "        first = False\n",
        (FORMER,),
    ),
    Mutant(
        "a topic is forgotten with its deletion, and a node that lags behind brings it back", TWICE, "client/cluster.py",
        "        if answer.error_code in _SAYS_WHICH:\n",
        "        if answer.error_code:\n            self._topic_ids.pop(answer.name, None)\n        else:\n",
        (FORMER,),
    ),
    Mutant(
        "a partition that is asked otherwise is not named", TOLD, "client/fetch_session.py",
        "if known.get(partition) != asked}",
        "if partition not in known}",
        (MACHINE, FETCHES),
    ),
    Mutant(
        "a request counts before its answer", TOLD, "client/fetch_session.py",
        "        self._open = request, wanted\n        return request\n",
        "        self._open, self._known = (request, wanted), wanted\n        return request\n",
        (MACHINE,),
    ),
    Mutant(
        "a lost answer is not followed by a full request", TOLD, "client/fetch_session.py",
        "        if self._open is not None or by_id is not self._by_id:\n",
        "        if by_id is not self._by_id:\n",
        (MACHINE, FETCHES),
    ),
    Mutant(
        "a session goes on after a lost answer", TOLD, "client/fetch_session.py",
        "        \"\"\"No answer will come, or the node was reached again in another way: what it has is not known.\"\"\"\n        self._start_over(self._id)\n",
        "        self._open = None\n",
        (MACHINE, FETCHES),
    ),
    Mutant(
        "a session that the node does not know goes on", "a hang", "client/fetch_session.py",
        "        self._start_over(NO_SESSION if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND else self._id)\n",
        "        self._open = None\n",
        (MACHINE, FETCHES),
    ),
    Mutant(
        "a topic made again is not forgotten by its old id", ENDS, "client/fetch_session.py",
        "                if (now := wanted.get(partition)) is None or now.topic_id != asked.topic_id}\n",
        "                if partition not in wanted}\n",
        (MACHINE, FETCHES),
    ),
    Mutant(
        "what is not read any more stays in the session", ENDS, "client/fetch_session.py",
        "            request = SessionRequest(self._id, self._epoch, named, forgotten)\n",
        "            request = SessionRequest(self._id, self._epoch, named, {})\n",
        (MACHINE, FETCHES),
    ),
    Mutant(
        "an answer about other partitions goes with the session", TOLD, "client/fetch_session.py",
        "        if incomplete or any(partition not in wanted for partition in told):\n",
        "        if False:\n",
        (MACHINE,),
    ),
    Mutant(
        "a session that the node has ended goes on", TOLD, "client/fetch_session.py",
        "        if session_id == NO_SESSION:\n            self._start_over(NO_SESSION)",
        "        if False:\n            self._start_over(NO_SESSION)",
        (MACHINE,),
    ),
    Mutant(
        "a partition that an answer leaves out loses its ends", "KIP-227", "client/fetch_session.py",
        "        for partition, ends in told.items():\n            if ends is None:",
        "        self._ends.clear()\n        for partition, ends in told.items():\n            if ends is None:",
        (MACHINE, FETCHES),
    ),
    Mutant(
        "a partition that fails keeps its ends, and counts as tried", TWICE, "client/fetch_session.py",
        "                self._ends.pop(partition, None)\n            else:\n",
        "                pass\n            else:\n",
        (MACHINE, FETCHES),
    ),
    Mutant(
        "a new connection continues the session", "KIP-227", "client/node_fetches.py",
        "            node.session.lost()\n",
        "",
        (FETCHES,),
    ),
    Mutant(
        "a node from which nothing is read keeps its session", ENDS, "client/fetcher.py",
        "                if node_id not in sources:\n                    self._nodes.end(node_id)\n",
        "                pass\n",
        (FETCHES,),
    ),
    Mutant(
        "a consumer that closes leaves its sessions", ENDS, "client/fetcher.py",
        "        await self._nodes.close()\n",
        "",
        (FETCHES,),
    ),
    Mutant(
        "a replica's range is taken for the log's", POSITION, "client/fetcher.py",
        "        if copied:  # only the leader can say what is in the log\n",
        "        if copied and code not in _BEHIND:\n",
        (REPLICAS,),
    ),
    Mutant(
        "a replica is read for ever", REPLICA, "client/read_replicas.py",
        "        if now_ms >= chosen.until_ms or chosen.leader_epoch != leader.epoch:\n",
        "        if chosen.leader_epoch != leader.epoch:\n",
        (REPLICAS,),
    ),
    Mutant(
        "a replica is read although another node leads", REPLICA, "client/read_replicas.py",
        "        if now_ms >= chosen.until_ms or chosen.leader_epoch != leader.epoch:\n",
        "        if now_ms >= chosen.until_ms:\n",
        (REPLICAS,),
    ),
    Mutant(
        "a replica that cannot be reached is kept", "a hang", "client/fetcher.py",
        "        if leader is None or leader.node_id == node_id or not self._leave_copy(partition, AVOIDED_MS):\n",
        "        if True:\n",
        (REPLICAS,),
    ),
    Mutant(
        "the leader sends back to the replica that has failed", "a hang", "client/read_replicas.py",
        "            if any(each in partitions for each in self._avoiding):\n                return \"\"\n",
        "",
        (REPLICAS,),
    ),
    Mutant(
        "a single fetch takes a replica's end for the log's", REPLICA, "client/raw_fetch.py",
        "            if copied and (code or answer is None or not answer.records):\n",
        "            if copied and (code or answer is None):\n",
        (REPLICAS,),
    ),
    Mutant(
        "damage at a replica fails the partition", "a false error", "client/fetcher.py",
        "                if not self._leave_copy(partition, AVOIDED_MS):\n                    self._failures",
        "                if True:\n                    self._failures",
        (REPLICAS,),
    ),
)
