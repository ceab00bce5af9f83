"""Bugs that let somebody do what no ACL permits, or show what is hidden."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

DECISIONS = unit("core/access/test_decisions.py")
NEEDS = unit("kafka/test_needs.py")
ACLS = unit("kafka/test_acls.py")
PUBLIC = unit("runtime/test_public_access.py")

MUTANTS = (
    Mutant(
        "a denial is passed over", "KIP-11", "core/access/index.py",
        "                return Decision(False, binding, \"denied by a binding\")\n            if permitting",
        "                continue\n            if permitting",
        (DECISIONS,),
    ),
    Mutant(
        "a permission counts before a later denial is seen", "KIP-11", "core/access/index.py",
        "                permitting = binding\n",
        "                return Decision(True, binding, \"permitted by a binding\")\n",
        (DECISIONS,),
    ),
    Mutant(
        "prefixes are not looked up", "KIP-290", "core/access/index.py",
        "            yield from rules.get((kind, Pattern.PREFIXED, name[:length]), ())\n",
        "            break\n",
        (DECISIONS,),
    ),
    Mutant(
        "a binding of one host holds for all", "KIP-11", "core/access/index.py",
        "        if binding.host != WILDCARD and self._hosts[binding.host] != host:\n            return False\n",
        "",
        (DECISIONS,),
    ),
    Mutant(
        "a denial of reading denies describing", "KIP-11", "core/access/index.py",
        "        return binding.permission is Permission.ALLOW and binding.operation in IMPLIED_BY",
        "        return binding.operation in IMPLIED_BY",
        (DECISIONS,),
    ),
    Mutant(
        "where all is open, a producer id is given although an ACL names every topic", "KIP-679; Kafka's authoriser",
        "core/access/index.py",
        "policy.allow_without_bindings and (action.kind, Pattern.LITERAL, WILDCARD) not in self._rules:",
        "policy.allow_without_bindings:",
        (DECISIONS,),
    ),
    Mutant(
        "a resource that bindings name is open to those they do not name", "allow.everyone.if.no.acl.found", "core/access/index.py",
        "policy.allow_without_bindings and not named and not literal_only else",
        "policy.allow_without_bindings and not literal_only else",
        (DECISIONS,),
    ),
    Mutant(
        "the common * opens internal topics", "docs/security.md", "core/access/index.py",
        "                not literal_only or (",
        "                True or (",
        (DECISIONS,),
    ),
    Mutant(
        "a producer id is given although all that it could write is denied", "KIP-679", "core/access/index.py",
        "            if not any(_covers(each, binding) for each in denied):\n",
        "            if True:\n",
        (DECISIONS,),
    ),
    Mutant(
        "before the bindings are read everybody may do everything", "docs/security.md", "core/access/index.py",
        "        return _SUPER if principal in policy.super_users else _NOT_LOADED\n",
        "        return _SUPER\n",
        (DECISIONS,),
    ),
    Mutant(
        "an ended right is remembered", "docs/security.md", "kafka/needs.py",
        "    if rights is not None and rights.index is access.image.index and",
        "    if rights is not None and",
        (NEEDS,),
    ),
    Mutant(
        "a connection keeps the rights of its former principal", "docs/security.md", "kafka/needs.py",
        " and rights.principal == session.principal:\n",
        ":\n",
        (NEEDS,),
    ),
    Mutant(
        "a copied proof makes a user a node", "rule 17", "runtime/access.py",
        "        return not self._node_principals or principal in self._node_principals\n",
        "        return True\n",
        (NEEDS,),
    ),
    Mutant(
        "the refused part of a request reaches its handler", "docs/security.md", "kafka/needs.py",
        "    setattr(request, field, kept)\n",
        "",
        (NEEDS,),
    ),
    Mutant(
        "a write that is refused is written too", "docs/security.md", "kafka/api/produce.py",
        "            part for part, code in zip(whole.partitions, codes, strict=True) if not code]))\n",
        "            part for part, code in zip(whole.partitions, codes, strict=True)]))\n",
        (NEEDS,),
    ),
    Mutant(
        "a topic's id reads what its name does not", "docs/security.md", "kafka/api/fetch.py",
        "    name = access.name_of_topic(topic) if isinstance(topic, bytes) else topic\n    return None if name is None",
        "    name = None if isinstance(topic, bytes) else topic\n    return None if name is None",
        (NEEDS,),
    ),
    Mutant(
        "a replica id reads without a right", "rule 17", "kafka/api/fetch.py",
        "        if rights.may_in_cluster(CLUSTER_ACTION):\n            return reader.fetch(ctx, request)\n",
        "        if True:\n            return reader.fetch(ctx, request)\n",
        (NEEDS,),
    ),
    Mutant(
        "a fetch session goes on after its right ended", "KIP-227", "broker/fetch.py",
        "        if session is not None and session.approved_for is not rights:\n",
        "        if session is not None and session.approved_for is None:\n",
        (unit("broker/test_session_fetches.py"),),
    ),
    Mutant(
        "kept metadata is given to other clients", "docs/security.md", "kafka/api/metadata.py",
        "        key = (version, ctx.listener, bytes(body), rights)\n",
        "        key = (version, ctx.listener, bytes(body), None)\n",
        (ACLS,),
    ),
    Mutant(
        "a hidden topic is told from a missing one", "docs/security.md", "kafka/api/metadata.py",
        "            if name is None or asking.may(DESCRIBE_TOPIC, name):\n",
        "            if name is None or self._view.topic(name) is None or asking.may(DESCRIBE_TOPIC, name):\n",
        (ACLS,),
    ),
    Mutant(
        "a topic is created at first use by those who may not create it", "docs/security.md", "kafka/api/metadata.py",
        "                    missing = [name for name in missing if name not in refused]\n",
        "",
        (ACLS,),
    ),
    Mutant(
        "partitions are added to a transaction in part", "KIP-98", "kafka/api/add_partitions_to_txn.py",
        "    if not refused_topics:\n        return None\n",
        "    if len(refused_topics) < len(request.v3_and_below_topics):\n        return None\n",
        (NEEDS,),
    ),
    Mutant(
        "a lease is taken over without a right to what it holds", "rule 8", "runtime/public_access.py",
        "        if lease and lease_topics is not None:\n",
        "        if False:\n",
        (PUBLIC,),
    ),
    Mutant(
        "a binding that is removed stays in force", "docs/security.md", "runtime/access_image.py",
        "            self._changes[key] = None\n",
        "            pass\n",
        (ACLS,),
    ),
)
