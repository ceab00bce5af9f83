"""Bugs by which a Mirror writes what is not its namespace's, copies what another copies, takes over what it did not make,
or shows what is not so. Paths lead from services/hapax to the operator."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

PLAN = unit("operator/test_plan_mirror.py")
PODS = unit("operator/test_mirror_pods.py")
OPERATOR = "../../operator/hapax_operator/"
PAGE = "docs/kubernetes.md"

MUTANTS = (
    Mutant(
        "a Mirror is judged by the source's names, without its prefix", PAGE, OPERATOR + "mirror_resource.py",
        "        return tuple(Names(self.prefix + each.text, each.prefix) for each in self.topics)\n",
        "        return self.topics\n",
        (PLAN,),
    ),
    Mutant(
        "a Mirror with a pattern is judged as one with a name", PAGE, OPERATOR + "mirror_resource.py",
        "policy.owns(namespace, kind, each.text, prefix=each.prefix)",
        "policy.owns(namespace, kind, each.text)",
        (PLAN,),
    ),
    Mutant(
        "a Mirror translates positions of groups that are not its namespace's", PAGE, OPERATOR + "mirror_resource.py",
        "(*mirror.groups, Names(mirror.group, prefix=False))",
        "(Names(mirror.group, prefix=False),)",
        (PLAN,),
    ),
    Mutant(
        "copiers without partitions have nothing to copy", PAGE, OPERATOR + "plan_mirror.py",
        "        if any(matching):\n", "        if False:\n",
        (PLAN,),
    ),
    Mutant(
        "copiers that have not connected have nothing to copy", PAGE, OPERATOR + "plan_mirror.py",
        "        if not matching:\n", "        if False:\n",
        (PLAN,),
    ),
    Mutant(
        "a Mirror that the policy forbids goes on", PAGE, OPERATOR + "plan_mirror.py",
        "        actions = (Stop(running.version),)\n",
        "        pass\n",
        (PLAN,),
    ),
    Mutant(
        "a paused Mirror that the policy forbids goes on", PAGE, OPERATOR + "plan_mirror.py",
        "    if running is not None and running.ours and running.wanted:\n",
        "    if running is not None and running.ours and running.wanted and not mirror.meta.paused:\n",
        (PLAN,),
    ),
    Mutant(
        "two Mirrors copy to one topic", PAGE, OPERATOR + "plan_mirror.py",
        "    if older is not None:\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "a pattern and a name that it matches are two topics", PAGE, OPERATOR + "mirror_resource.py",
        "        return (self.prefix and other.text.startswith(self.text)) or self == other\n",
        "        return (self.prefix and other.prefix and other.text.startswith(self.text)) or self == other\n",
        (PLAN,),
    ),
    Mutant(
        "a Mirror that may not be holds up the others", PAGE, OPERATOR + "plan_mirror.py",
        "        and not forbidden(each, policy)), None)\n",
        "        ), None)\n",
        (PLAN,),
    ),
    Mutant(
        "the dot in a topic's name matches any character", PAGE, OPERATOR + "mirror_resource.py",
        'return "|".join(re.escape(each.text) + (',
        'return "|".join(each.text + (',
        (PLAN,),
    ),
    Mutant(
        "a Deployment of somebody else is replaced", PAGE, OPERATOR + "plan_mirror.py",
        "    if running is not None and not running.ours:\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "a forbidden Mirror ends a Deployment of somebody else", PAGE, OPERATOR + "plan_mirror.py",
        "    if running is not None and running.ours and running.wanted:\n",
        "    if running is not None and running.wanted:\n",
        (PLAN,),
    ),
    Mutant(
        "a User of somebody else gets the rights of a copy", PAGE, OPERATOR + "plan_mirror.py",
        "        elif not seen.user.ours:\n",
        "        elif False:\n",
        (PLAN,),
    ),
    Mutant(
        "copiers go on with the password of before a rotation", PAGE, OPERATOR + "mirror_pods.py",
        '            **({"annotations": {PASSWORD: own.password_since}} if own is not None else {})},\n',
        "            },\n",
        (PLAN,),
    ),
    Mutant(
        "copiers are made before their User is ready", PAGE, OPERATOR + "plan_mirror.py",
        "    elif waits:\n",
        "    elif False:\n",
        (PLAN,),
    ),
    Mutant(
        "copiers that were scaled by hand stay so", PAGE, OPERATOR + "plan_mirror.py",
        'elif (running.fingerprint, running.wanted) != (fingerprint_of(wanted), wanted["spec"]["replicas"]):\n',
        "elif running.fingerprint != fingerprint_of(wanted):\n",
        (PLAN,),
    ),
    Mutant(
        "a paused Mirror is changed", PAGE, OPERATOR + "plan_mirror.py",
        "    if foreign or mirror.meta.paused:\n",
        "    if foreign:\n",
        (PLAN,),
    ),
    Mutant(
        "the lag of the copiers that answer is told as that of all", PAGE, OPERATOR + "plan_mirror.py",
        "    if not ready or any(each.uid not in seen.reports for each in ready):\n",
        "    if not ready:\n",
        (PLAN,),
    ),
    Mutant(
        "a copier's records count again after each look", PAGE, OPERATOR + "plan_mirror.py",
        "        total += max(0, report.records - counted)\n",
        "        total += report.records\n",
        (PLAN,),
    ),
    Mutant(
        "a new process of a copier is taken for the former one", PAGE, OPERATOR + "plan_mirror.py",
        ' if known is not None and known.get("startedAt") == started else 0',
        " if known is not None else 0",
        (PLAN,),
    ),
    Mutant(
        "an error hides the topic that another copier has blocked", PAGE, OPERATOR + "mirror_reports.py",
        "    worse = max(one, other, key=lambda each: (each.blocked, bool(each.error)))\n",
        "    worse = other\n",
        (PLAN,),
    ),
    Mutant(
        "a template replaces the copier's command", PAGE, OPERATOR + "mirror_pods.py",
        '        "template": merged(merged(usual, given_in(mirror.template)), needed)}\n',
        '        "template": merged(merged(usual, needed), given_in(mirror.template))}\n',
        (PODS,),
    ),
    Mutant(
        "a copy's user may write under the ids of copies whose names begin alike", PAGE, OPERATOR + "mirror_resource.py",
        '        return Names(self.group + ".", prefix=True)\n',
        "        return Names(self.group, prefix=True)\n",
        (PODS,),
    ),
    Mutant(
        "a User is taken for ready before the operator has looked at its rights", PAGE, OPERATOR + "mirror_pods.py",
        '        current and found.get("status") == "True"',
        '        found.get("status") == "True"',
        (PODS,),
    ),
    Mutant(
        "a source that one copier does not reach is away for the Mirror", PAGE, OPERATOR + "plan_mirror.py",
        'if told and all(told) else ""',
        'if any(told) else ""',
        (PLAN,),
    ),
    Mutant(
        "a Mirror holds up another one for a topic that it leaves out", PAGE, OPERATOR + "mirror_resource.py",
        "        left_out = (*self._left_out, *other._left_out)\n",
        "        left_out = self._left_out\n",
        (PLAN,),
    ),
    Mutant(
        "a Mirror whose topics an older one has taken over goes on until its next look", PAGE, OPERATOR + "mirrors.py",
        "            self._wake_beside(former)\n            self._wake_beside(mirror)\n",
        "            self._wake_beside(former)\n",
        (unit("operator/test_mirrors.py"),),
    ),
    Mutant(
        "new copiers start before their User has the rights that they need", PAGE, OPERATOR + "plan_mirror.py",
        "own_user and (bool(actions) or seen.user is None",
        "own_user and (seen.user is None",
        (PLAN,),
    ),
    Mutant(
        "a Mirror that comes from another cluster crosses others until their next look", PAGE, OPERATOR + "mirrors.py",
        "        return self._clusters.owns(mirror.meta), *mirror.place\n",
        "        return mirror.place\n",
        (unit("operator/test_mirrors.py"),),
    ),
)
