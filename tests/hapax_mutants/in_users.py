"""Bugs by which a User gets rights that are not its namespace's, takes over what others made, loses its password, or
leaves something behind. Paths lead from services/hapax to the operator."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

OWNERS = unit("controller/test_owners.py")
POLICY = unit("operator/test_namespace_policy.py")
OUTSIDE = unit("operator/test_outside_policy.py")
PLAN = unit("operator/test_plan_user.py")
TOPIC = unit("operator/test_plan_topic.py")
CLUSTERS = unit("operator/test_clusters.py")
LEASE = unit("operator/test_plan_lease.py")
RECONCILER = unit("operator/test_reconciler.py")
APPLY = unit("operator/test_apply_user.py")
SPEC = unit("operator/test_certificates_spec.py")
MODEL = unit("operator/test_plan_user_model.py")
USERS = unit("operator/test_users.py")
PRODUCER = unit("operator/test_plan_producer.py")
OPERATOR = "../../operator/hapax_operator/"

MUTANTS = (
    Mutant(
        "an owner removes the ACLs of others", "docs/kubernetes.md", "controller/acls.py",
        ' and owner in ("", stored.owner)}',
        "}",
        (OWNERS,),
    ),
    Mutant(
        "an owner replaces a password that was made by hand", "docs/kubernetes.md", "controller/scram_credentials.py",
        "        if owner and stored is not None and stored.owner != owner:\n",
        "        if False:\n",
        (OWNERS,),
    ),
    Mutant(
        "a password that is changed by hand is lost to its owner", "docs/kubernetes.md", "controller/scram_credentials.py",
        "owner if stored is None else stored.owner)",
        "owner)",
        (OWNERS,),
    ),
    Mutant(
        "an owner changes the quotas of others", "docs/kubernetes.md", "controller/quotas.py",
        "        if owner and stored is not None and stored.record.owner != owner:\n",
        "        if False:\n",
        (OWNERS,),
    ),
    Mutant(
        "a namespace owns the names that begin like its own", "docs/kubernetes.md", OPERATOR + "namespace_policy.py",
        "        if _AMBIGUOUS.search(each):\n",
        "        if False:\n",
        (POLICY,),
    ),
    Mutant(
        "a prefix that reaches into other namespaces is permitted", "docs/kubernetes.md", OPERATOR + "namespace_policy.py",
        "    return names.covers(binding.name, namespace, prefix=binding.pattern is Pattern.PREFIXED)\n",
        "    return names.covers(binding.name, namespace)\n",
        (POLICY,),
    ),
    Mutant(
        "a rule may grant ClusterAction", "docs/kubernetes.md", OPERATOR + "namespace_policy.py",
        "    if kind is ResourceType.CLUSTER and found & _NEVER:\n",
        "    if False:\n",
        (POLICY,),
    ),
    Mutant(
        "a Topic outside the policy still owns the topic", "docs/kubernetes.md", OPERATOR + "plan_topic.py",
        "each.managed and not each.outside), key",
        "each.managed), key",
        (OUTSIDE,),
    ),
    Mutant(
        "the policy of a foreign transactional id stays in force", "docs/kubernetes.md", OPERATOR + "plan_policy.py",
        " or resource.lease is not None or resource.outside:",
        " or resource.lease is not None:",
        (OUTSIDE,),
    ),
    Mutant(
        "two clusters act on a resource that names none", "docs/kubernetes.md", OPERATOR + "clusters.py",
        "meta.cluster == self.own or (not meta.cluster and self._nearest(meta) == (self.own,))",
        "meta.cluster in (self.own, '')",
        (CLUSTERS,),
    ),
    Mutant(
        "the Topic of another cluster is a claimant", "docs/kubernetes.md", OPERATOR + "resource_index.py",
        "        own = (each for each in found.values() if self._clusters.owns(each.meta))\n",
        "        own = iter(found.values())\n",
        (CLUSTERS,),
    ),
    Mutant(
        "a Topic takes over whatever has its name", "docs/kubernetes.md", OPERATOR + "plan_topic.py",
        "    if seen is not None and not _may_change(resource, seen):\n",
        "    if False:\n",
        (TOPIC,),
    ),
    Mutant(
        "the deletion of a resource deletes a topic that is not its own", "docs/kubernetes.md", OPERATOR + "plan_topic.py",
        "not seen.internal and is_own(resource, seen):",
        "not seen.internal:",
        (TOPIC,),
    ),
    Mutant(
        "a topic that was only looked at counts as adopted", "docs/kubernetes.md", OPERATOR + "plan_topic.py",
        ' and "configured" in status and ',
        " and ",
        (TOPIC,),
    ),
    Mutant(
        "a lease that exists is kept without being adopted", "docs/kubernetes.md", OPERATOR + "plan_lease.py",
        "    if resource.managed and not own:\n",
        "    if False:\n",
        (LEASE,),
    ),
    Mutant(
        "an id in use is fenced without being adopted", "docs/kubernetes.md", OPERATOR + "plan_policy.py",
        " and policy_of(resource) is not None and not resource.meta.adopts\n",
        " and False\n",
        (RECONCILER,),
    ),
    Mutant(
        "a User is a super user", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "    if policy.is_reserved(resource.principal):\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "permissions stay where a denial is refused", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "    if any(each.permission is Permission.DENY for each in refused):\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "ACLs of others are removed with a User", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "for binding, each in seen.bindings.items() if each == owner]",
        "for binding, each in seen.bindings.items()]",
        (MODEL,),
    ),
    Mutant(
        "a user that was made by hand is taken over", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "    if foreign is not None and resource.login == SCRAM:\n",
        "    if False:\n",
        (MODEL,),
    ),
    Mutant(
        "a rotation publishes the password before it works", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "(secret, password) if mechanism is published else (password, secret)",
        "(secret, password)",
        (MODEL,),
    ),
    Mutant(
        "the former password ends with the rotation", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "    if former and now_ms >= ends_ms and not actions:\n",
        "    if former and not actions:\n",
        (PLAN,),
    ),
    Mutant(
        "a former password never ends", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "    if former and now_ms >= ends_ms and not actions:\n",
        "    if False:\n",
        (MODEL,),
    ),
    Mutant(
        "the finalizer of a User goes before its rights", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "    finalizer = False if USER_FINALIZER in resource.meta.finalizers and not actions else None\n",
        "    finalizer = False if USER_FINALIZER in resource.meta.finalizers else None\n",
        (MODEL,),
    ),
    Mutant(
        "a password is made before the finalizer", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "True if actions and not has else None",
        "None",
        (MODEL,),
    ),
    Mutant(
        "a Secret that was altered is believed", "docs/kubernetes.md", OPERATOR + "user_secret.py",
        "        return found if strong and self.credential == _password_told(found) else None\n",
        "        return found\n",
        (PLAN,),
    ),
    Mutant(
        "a certificate's principal may be another namespace's", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "    if resource.quota_user not in (resource.name, f\"CN={resource.name}\") and not policy.owns_user(\n",
        "    if False and not policy.owns_user(\n",
        (PLAN,),
    ),
    Mutant(
        "two Users of one principal by its certificates both count", "docs/kubernetes.md", OPERATOR + "users.py",
        "        refs = {ref for name in _names(resource) for ref in self._by_name.get(name, ())}\n",
        "        refs = set(self._by_name.get(resource.name, ()))\n",
        (APPLY,),
    ),
    Mutant(
        "a Secret loses the authority that its clients trust", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "    if seen.ca is None:",
        "    if False:",
        (PLAN,),
    ),
    Mutant(
        "a clock that was ahead keeps a former password", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "    kept = kept._replace(since_ms=min(kept.since_ms, now_ms))\n",
        "",
        (PLAN,),
    ),
    Mutant(
        "the operator's authority signs servers too", "docs/kubernetes.md", "local/authority.py",
        "            .add_extension(x509.ExtendedKeyUsage(_USES[use]), critical=False)\n",
        "            .add_extension(x509.ExtendedKeyUsage(_USES[\"both\" if signs else use]), critical=False)\n",
        (APPLY,),
    ),
    Mutant(
        "the operator's authority makes authorities", "docs/kubernetes.md", "local/authority.py",
        "path_length=0 if signs else None",
        "path_length=None",
        (APPLY,),
    ),
    Mutant(
        "an authority ends before the next one signs", "docs/kubernetes.md", OPERATOR + "certificates_spec.py",
        "        if 3 * int(found[\"overlapSeconds\"][authority]) >= int(",
        "        if False and 0 >= int(",
        (SPEC,),
    ),
    Mutant(
        "the operator's own namespace cannot be deleted with its Users", "docs/kubernetes.md", OPERATOR + "plan_user.py",
        "    finalizer = (False if has else None) if seen.at_home else True if actions and not has else None\n",
        "    finalizer = True if actions and not has else None\n",
        (PLAN,),
    ),
    Mutant(
        "keys of tokens never follow the API server", "docs/kubernetes.md", OPERATOR + "certificates_secrets.py",
        "        complete &= data.get(TOKENS) == tokens\n",
        "        complete &= TOKENS in data\n",
        (SPEC,),
    ),
    Mutant(
        "a deleted User that no watch told of keeps its rights", "docs/kubernetes.md", OPERATOR + "users.py",
        "(changes or unheld or len(claimants) > 1)",
        "(changes or len(claimants) > 1)",
        (USERS,),
    ),
    Mutant(
        "a client that is called like the operator fences unseen", "docs/audit.md", OPERATOR + "plan_producer.py",
        '    if OPERATOR in told["by"] and (status.get("lastFence") or {}).get("fencedEpoch") == told["fencedEpoch"]:\n',
        '    if OPERATOR in told["by"]:\n',
        (PRODUCER,),
    ),
)
