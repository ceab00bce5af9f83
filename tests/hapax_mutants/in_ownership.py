"""Bugs by which a Kubernetes resource takes over or deletes what it did not make, loses what it made, or acts on what a
watch reported long ago. Paths lead from services/hapax to the operator."""


from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

TOPIC = unit("operator/test_plan_topic.py")
LEASE = unit("operator/test_plan_lease.py")
POLICIES = unit("operator/test_plan_policy.py")
MAKING = unit("operator/test_topic_making.py")
RECONCILER = unit("operator/test_reconciler.py")
BROKERS = unit("operator/test_plan_brokers.py")
POOL = unit("operator/test_brokers.py")
SWEEP = unit("operator/test_sweep.py")
API = unit("operator/test_api.py")
CONTROLLER = unit("controller/test_reassignments.py")
OPERATOR = "../../operator/hapax_operator/"
EXISTS = "docs/kubernetes.md, What exists already"
WATCHES = "docs/decisions/kubernetes-libraries.md"

MUTANTS = (
    Mutant(
        "a topic that was made again by a client is still the resource's", EXISTS, OPERATOR + "plan_topic.py",
        ' or status.get("ownedTopicId") == seen.topic_id:',
        ' or status.get("ownedTopicId"):',
        (TOPIC,),
    ),
    Mutant(
        "a topic that any resource made is every resource's", EXISTS, OPERATOR + "plan_topic.py",
        "    if seen.made_by == resource.meta.uid or",
        "    if seen.made_by or",
        (TOPIC,),
    ),
    Mutant(
        "a topic is not its resource's until the status says so", EXISTS, OPERATOR + "plan_topic.py",
        "    if seen.made_by == resource.meta.uid or",
        "    if",
        (TOPIC,),
    ),
    Mutant(
        "a topic of an earlier release is lost by a time outside the policy", EXISTS, OPERATOR + "plan_topic.py",
        "_of_earlier_release(resource) | {\"topicName\"",
        "{\"topicName\"",
        (TOPIC,),
    ),
    Mutant(
        "a resource of an earlier release takes over what a client made while it was unmanaged", EXISTS,
        OPERATOR + "plan_topic.py",
        "    return status | _of_earlier_release(resource)",
        "    return status",
        (TOPIC,),
    ),
    Mutant(
        "a note of ownership is replaced by the topic that the status shows", EXISTS, OPERATOR + "plan_topic.py",
        '    known = "" if "ownedTopicId" in resource.status else _known(resource)\n',
        '    known = str(resource.status.get("topicId") or "")\n',
        (TOPIC,),
    ),
    Mutant(
        "a lease of an earlier release is lost by a pause", EXISTS, OPERATOR + "plan_lease.py",
        '    held = (status.get("lease") or {}).get("name") == lease.name and status.get("producerId") is not None\n',
        "    held = False\n",
        (LEASE,),
    ),
    Mutant(
        "a lease that was only looked at is the resource's later", EXISTS, OPERATOR + "plan_lease.py",
        '    return lease.name if held and resource.managed else ""\n',
        "    return lease.name\n",
        (LEASE,),
    ),
    Mutant(
        "a lease is taken before the status says whose it is", EXISTS, OPERATOR + "plan_lease.py",
        '    intends = action is not None and resource.status.get("ownedLease") != lease.name\n',
        "    intends = False\n",
        (LEASE,),
    ),
    Mutant(
        "a lease that a client took again counts as that of an earlier release", EXISTS, OPERATOR + "plan_lease.py",
        ' shown.get("name") == lease.name and status.get("producerId") == producer_id)\n',
        ' shown.get("name") == lease.name)\n',
        (LEASE,),
    ),
    Mutant(
        "ids that a former release carried out must be adopted", EXISTS, OPERATOR + "plan_policy.py",
        "    return stored is None and policy_of(resource) is not None and",
        "    return policy_of(resource) is not None and",
        (POLICIES,),
    ),
    Mutant(
        "a topic that was created without a leader is not its resource's during an upgrade", EXISTS,
        OPERATOR + "topic_making.py",
        "            if not isinstance(result, Refusal) and result.topic_id and spec.made_by:\n",
        "            if not isinstance(result, Refusal) and not result.error and spec.made_by:\n",
        (MAKING,),
    ),
    Mutant(
        "an answer from before a resource was made ends it", "a resource waits for nothing but its next event",
        OPERATOR + "reconciler.py",
        "meanwhile\n        body = await self._api.get(ref)\n",
        "meanwhile\n        body = await self._api.get(ref)\n        known = self.resources.get(ref)\n",
        (RECONCILER,),
    ),
    Mutant(
        "what the look at another resource found is not looked at", "a resource waits for nothing but its next event",
        OPERATOR + "reconciler.py",
        "            self._queue.add(_key(resource))\n            for job",
        "            for job",
        (RECONCILER,),
    ),
    Mutant(
        "a topic that a controller of the former release created is not its resource's", EXISTS,
        OPERATOR + "reconciler.py",
        "        return replace(seen, made_by=self._maker.made_for(seen.topic_id))\n",
        "        return seen\n",
        (RECONCILER,),
    ),
    Mutant(
        "the controller forgets for which resource a topic is made", EXISTS, "controller/topics.py",
        "wanted, config,\n            made_by=spec.made_by)",
        "wanted, config)",
        (CONTROLLER,),
    ),
    Mutant(
        "a change of a topic forgets for which resource it was made", EXISTS, "codec/metadata.py",
        '            **({"made_by": self.made_by} if self.made_by else {}),\n',
        "",
        (CONTROLLER,),
    ),
    Mutant(
        "a drain that a person started ends with a scale-down that is taken back", "docs/kubernetes.md",
        OPERATOR + "plan_brokers.py",
        "each for each in leaving if each in drained or each not in seen.draining]",
        "*leaving]",
        (BROKERS,),
    ),
    Mutant(
        "a drain of a BrokerPool that is gone stays", "docs/kubernetes.md", OPERATOR + "plan_brokers.py",
        ' or ()} | seen.drained_by_pool\n',
        " or ()}\n",
        (BROKERS,),
    ),
    Mutant(
        "a person's drain counts as a BrokerPool's", "docs/kubernetes.md", "runtime/cluster.py",
        "for node_id, record in self._draining.items() if record.by == by)",
        "for node_id, record in self._draining.items())",
        (CONTROLLER,),
    ),
    Mutant(
        "a BrokerPool's drain counts as a person's", "docs/kubernetes.md", "controller/reassignments.py",
        "DrainingRecord(now_ms, request.drained_by).encode()",
        "DrainingRecord(now_ms).encode()",
        (CONTROLLER,),
    ),
    Mutant(
        "a BrokerPool that is made again removes brokers, by the chart's number", "docs/kubernetes.md",
        OPERATOR + "brokers.py",
        "        replicas = seen.replicas if seen.scaled or seen.chart_replicas is None else seen.chart_replicas\n",
        "        replicas = seen.chart_replicas or seen.replicas\n",
        (POOL,),
    ),
    Mutant(
        "a look replaces what the watch has reported since", WATCHES, OPERATOR + "sweep.py",
        "        known = self._known.meta(ref)\n        metadata = body[\"metadata\"]\n",
        "        metadata = body[\"metadata\"]\n",
        (SWEEP,),
    ),
    Mutant(
        "a resource that was deleted unseen stays", WATCHES, OPERATOR + "sweep.py",
        "    return found | {ref: meta for ref, meta in known.items() if ref not in here}\n",
        "    return found\n",
        (SWEEP,),
    ),
    Mutant(
        "a resource that was made again unseen is taken for the former", WATCHES, OPERATOR + "sweep.py",
        '    if known is None or metadata["uid"] != known.uid:\n',
        "    if known is None:\n",
        (SWEEP,),
    ),
    Mutant(
        "a resource that can no longer be read makes the watches again without end", WATCHES, OPERATOR + "sweep.py",
        "        if self._known.meta(ref) == known:\n",
        "        if self._known.meta(ref) is None:\n",
        (SWEEP,),
    ),
    Mutant(
        "an API server that is busy is taken for one that reports a change", WATCHES, OPERATOR + "api.py",
        "        if response.status >= 400:  # the client would",
        "        if response.status >= 600:  # the client would",
        (API,),
    ),
    Mutant(
        "one namespace that may not be read keeps the others from being swept", WATCHES, OPERATOR + "sweep.py",
        "                if error.code != _FORBIDDEN or not namespace:\n",
        "                if True:\n",
        (SWEEP,),
    ),
    Mutant(
        "an operator that may read nothing is ready", WATCHES, OPERATOR + "sweep.py",
        "                if error.code != _FORBIDDEN or not namespace:\n",
        "                if error.code != _FORBIDDEN:\n",
        (SWEEP,),
    ),
    Mutant(
        "where no namespace is left all are watched", WATCHES, OPERATOR + "watching.py",
        "            if left or not scope.namespaces:\n",
        "            if True:\n",
        (unit("operator/test_watching.py"),),
    ),
    Mutant(
        "a label that names no cluster is passed over", "docs/kubernetes.md", OPERATOR + "clusters.py",
        "            return meta.cluster not in (self.own, *self.others) and meta.taken_by != meta.cluster\n",
        "            return False\n",
        (unit("operator/test_clusters.py"),),
    ),
    Mutant(
        "a refused look for other clusters counts as none", "docs/kubernetes.md", OPERATOR + "neighbours.py",
        "        except (KubeUnavailable, KubeRefused) as error:\n"
        "            log.warning(\"cannot look for other clusters, trying",
        "        except KubeRefused:\n            return\n        except KubeUnavailable as error:\n"
        "            log.warning(\"cannot look for other clusters, trying",
        (unit("operator/test_clusters.py"),),
    ),
    Mutant(
        "an operator looks for other clusters before its own can be seen", "docs/kubernetes.md",
        OPERATOR + "neighbours.py",
        "            if clusters.announced or not clusters.own or not left:\n",
        "            if True:\n",
        (unit("operator/test_clusters.py"),),
    ),
    Mutant(
        "what was in a namespace that is gone takes precedence without end", "docs/kubernetes.md",
        OPERATOR + "sweep.py",
        "        if known and await self._api.namespace_is_gone(namespace):\n",
        "        if False:\n",
        (unit("operator/test_sweep.py"),),
    ),
    Mutant(
        "what was described in a namespace that is gone stays in the cluster", "docs/kubernetes.md",
        OPERATOR + "orphans.py",
        "        if await api.namespace_is_gone(ref.namespace):\n",
        "        if False:\n",
        (unit("operator/test_users.py"), unit("operator/test_reconciler.py")),
    ),
    Mutant(
        "what cannot be read is taken for gone", "docs/kubernetes.md", OPERATOR + "orphans.py",
        "        if await api.namespace_is_gone(ref.namespace):\n",
        "        if True:\n",
        (unit("operator/test_users.py"), unit("operator/test_reconciler.py")),
    ),
    Mutant(
        "any 404 says that an object is gone", "docs/kubernetes.md", OPERATOR + "api.py",
        '            if refused.absent == Absent(*path.split("/")[-2:]):\n',
        "            if refused.code == 404:\n",
        (unit("operator/test_api.py"),),
    ),
    Mutant(
        "the API server's 404 for anything says that a namespace is gone", "docs/kubernetes.md", OPERATOR + "api.py",
        '            if refused.absent == Absent(*path.split("/")[-2:]):\n',
        "            if refused.absent is not None:\n",
        (unit("operator/test_api.py"),),
    ),
)
