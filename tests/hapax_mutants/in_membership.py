"""Bugs in the native client's membership of consumer groups."""

from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import Mutant, unit

_PROPERTIES: Final = unit("client/test_membership_properties.py")
_ASSIGNORS: Final = unit("client/test_assignors.py")
_CONSUMER: Final = unit("client/test_consumer_membership.py")

MUTANTS: Final = (
    Mutant(
        "a member of the classic protocol trusts that its session goes on", "two owners",
        "client/classic_membership.py",
        "        return min(self._alive + options.session_timeout_ms, self._settled + options.max_poll_interval_ms)",
        "        return self._settled + 100 * options.max_poll_interval_ms",
        (_PROPERTIES,),
    ),
    Mutant(
        "a member of the consumer protocol trusts that its session goes on", "two owners",
        "client/consumer_membership.py",
        "        fence_at = self._confirmed + min(options.session_timeout_ms, options.max_poll_interval_ms)",
        "        fence_at = self._confirmed + 100 * options.max_poll_interval_ms",
        (_PROPERTIES,),
    ),
    Mutant(
        "a session counts from the answer to a heartbeat", "two owners", "client/consumer_membership.py",
        "        self._confirmed = sent\n",
        "        self._confirmed = now\n",
        (unit("client/test_consumer_membership.py"), _PROPERTIES),
    ),
    Mutant(
        "partitions are free before the program has been told", "two owners", "client/consumer_membership.py",
        " for each in self.owned) | self._target\n",
        " for each in self.owned if each not in self._to_revoke()) | self._target\n",
        (_PROPERTIES,),
    ),
    Mutant(
        "a topic whose name is gone is not given up", "partitions without an owner", "client/consumer_membership.py",
        "        return [each for each in self.owned if (each.topic_id, each.partition) not in self._target]\n",
        "        return [each for each in self.owned if each.topic_id in self._topics\n"
        "                and (each.topic_id, each.partition) not in self._target]\n",
        (_PROPERTIES,),
    ),
    Mutant(
        "what was given and not yet taken counts as given up", "two owners", "client/consumer_membership.py",
        " for each in self.owned) | self._target\n",
        " for each in self.owned)\n",
        (_CONSUMER, _PROPERTIES),
    ),
    Mutant(
        "a partition that moves is given away in the round in which its owner hears of it", "two owners",
        "client/assignors.py",
        "if each in own or not claims[each])",
        "if each in own or True)",
        (_ASSIGNORS, _PROPERTIES),
    ),
    Mutant(
        "a member gives partitions up and does not join again", "partitions without an owner",
        "client/classic_membership.py",
        "        return self._target is not None and any(each not in self._target for each in self._claimed)",
        "        return False",
        (_PROPERTIES,),
    ),
    Mutant(
        "an eager member joins with its partitions in hand", "two owners", "client/classic_membership.py",
        "        if self._due and not self._cooperative:\n            return self.owned",
        "        if self._due and not self._cooperative:\n            return ()",
        (_PROPERTIES,),
    ),
    Mutant(
        "after a loss commits name no member", "a zombie commits (KIP-447)", "client/membership.py",
        "        self._lost = True\n        self._abandon()\n        self._end_loss(now)",
        "        self._lost = True\n        self._identity = Identity(-1, \"\", None)\n        self._abandon()\n"
        "        self._end_loss(now)",
        (_PROPERTIES,),
    ),
    Mutant(
        "a member that waits for its program wakes up all the time", "a busy loop", "client/membership.py",
        "        if self._left or self._lost or self.failure is not None:",
        "        if self._left or self.failure is not None:",
        (_PROPERTIES,),
    ),
    Mutant(
        "a static member whose new id the coordinator has lost takes itself for a stranger", "a false error",
        "client/classic_membership.py",
        "        if self._renamed or self._member_id == self._known_id:",
        "        if True:",
        (_PROPERTIES,),
    ),
    Mutant(
        "what was taken back before the program had heard of it is never confirmed", "partitions without an owner",
        "client/consumer_membership.py",
        "            self._told = self._sent\n",
        "            self._told = self._sent & {(each.topic_id, each.partition) for each in self.owned}\n",
        (_CONSUMER,),
    ),
)
