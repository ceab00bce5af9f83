"""`python -m hapax_operator.main [--namespace NAME ...] [--brokers NAMESPACE/STATEFULSET]
[--coordinators NAMESPACE/STATEFULSET] [--access FILE] [--client-config FILE] [--spark-account NAME]
[--cluster NAMESPACE.NAME] [--rack-label LABEL] [--outside SELECTOR] [--config FILE] [--set name=value ...]`: one
operator.

Without `--namespace`, it reconciles all namespaces. It manages the number of brokers that `--brokers` names, and
replaces the pods of both StatefulSets, which are in one namespace, when their description changes.
`--access` says what namespaces may own and how clients reach the cluster (`access_file`); without it, every namespace
may own everything. `--client-config` has settings of a client, by which the operator itself reaches the listeners for
clients. `--spark-account` is the service account of Spark jobs that name none. `--cluster` is the cluster's name
among several; without it, the operator acts on the resources of all. `--rack-label` is the nodes' label whose
value is a broker's rack; without it, the operator looks for none. `--outside` selects the Services of load
balancers, one for each node, whose addresses clients outside are told. The other options are those of a controller.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hapax.runtime.process import run
from hapax_operator.access_file import AccessFile, load
from hapax_operator.namespace_policy import BadPolicy
from hapax_operator.service import start
from hapax_operator.spark_resource import DEFAULT_ACCOUNT


def main(argv: Sequence[str]) -> int:
    rest = list(argv)
    namespaces, brokers = _taken(rest, "--namespace"), _taken(rest, "--brokers")
    outside = _taken(rest, "--outside")
    clusters, rack_labels = _taken(rest, "--cluster"), _taken(rest, "--rack-label")
    access = AccessFile()
    for path in _taken(rest, "--access")[-1:]:
        try:
            access = load(Path(path))
        except (BadPolicy, OSError) as error:
            print(f"bad --access: {error}", file=sys.stderr)
            return 2
    clients = "".join(_taken(rest, "--client-config")[-1:])
    account = "".join(_taken(rest, "--spark-account")[-1:]) or DEFAULT_ACCOUNT
    coordinators = "".join(_taken(rest, "--coordinators")[-1:])
    return run(rest, "controller", partial(
        start, namespaces=namespaces, brokers="".join(brokers[-1:]), access=access, client_config=clients,
        spark_account=account, coordinators=coordinators, cluster="".join(clusters[-1:]),
        rack_label="".join(rack_labels[-1:]), outside="".join(outside[-1:])))


def _taken(words: list[str], option: str) -> list[str]:
    """The values of an option, which is removed from `words`."""
    values = []
    while option in words[:-1]:
        at = words.index(option)
        values.append(words[at + 1])
        del words[at : at + 2]
    return values


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
