"""The rights of the User that a Mirror gets are those that its copy needs: by the command line of its pods, on a
cluster with an authoriser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.logins import PASSWORD, Logins, logins, set_password
from clients.secured import secured
from conftest import end_cluster, start_cluster
from copying.world import CopyProcess
from hapax.client.blocking import Admin
from hapax.core.access.bindings import Filter
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.local.cluster import LocalCluster
from hapax_kube.users import SETTINGS, cluster_settings, read_one, topics, write
from hapax_operator.access_file import Copiers
from hapax_operator.mirror_pods import CONTAINER, UserSeen, deployment, user
from hapax_operator.mirror_resource import MirrorResource, read_mirror
from hapax_operator.user_resource import UserResource, read_user

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Logins:
    return logins(secured(tmp_path_factory.mktemp("certificates")))


@pytest.fixture(scope="module")
def hapax(people: Logins, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The listener of the nodes is open: everybody there is a super user."""
    assert "super.users=User:ANONYMOUS" in SETTINGS
    cluster = start_cluster(tmp_path_factory.mktemp("hapax"), brokers=1, settings=[
        *cluster_settings(people), "group.initial.rebalance.delay.ms=0"])
    yield cluster
    end_cluster(cluster)


def mirror(source: str, name: str, **spec: Any) -> MirrorResource:
    return read_mirror({
        "metadata": {"namespace": "shop", "name": name, "uid": name},
        "spec": {"source": {"bootstrapServers": source}, "topics": [name], "prefix": "shop.", **spec}})


def words(described: MirrorResource, target: str, profile: Path) -> list[str]:
    """Those of its pods, except that the copy ends."""
    made = deployment(described, Copiers(target, "none"), UserSeen("1", True, ""))
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["name"] == CONTAINER and container["args"][0] == "copy"
    here = {"/etc/hapax-copy/target/client.properties": str(profile), "$(POD_NAME)": "pod"}
    return [here.get(each, each) for each in container["args"][1:container["args"].index("--metrics-host")]
            if each != "--follow"]


def copier_of(
    described: MirrorResource, hapax: LocalCluster, people: Logins, folder: Path
) -> tuple[CopyProcess, UserResource]:
    """The copier of a Mirror, with the User as which it logs in, and which has no rights yet."""
    body = user(described, "")
    body["metadata"]["uid"] = "1"
    rights = read_user(body)
    set_password(hapax.bootstrap, rights.name)
    profile = folder / "client.properties"
    profile.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={people.tls.folder / 'ca.crt'}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{rights.name}" password="{PASSWORD}";\n', encoding="utf-8")
    return CopyProcess(folder / "copy.log", *words(described, people.bootstrap, profile)), rights


@pytest.mark.parametrize("spec", [{"groups": ["shop.*"]}, {"partitioning": "ByKey"}, {}])
def test_a_mirror_s_user_may_do_what_its_copy_needs(
    hapax: LocalCluster, people: Logins, tmp_path: Path, spec: dict[str, Any]
) -> None:
    name = f"orders-{''.join(spec).lower() or 'same'}"
    described, anybody = mirror(hapax.bootstrap, name, **spec), {"bootstrap.servers": hapax.bootstrap}
    topics(hapax, name)
    assert write(anybody, name) == "" and read_one(anybody, name, f"shop.{name}") == 1
    copier, rights = copier_of(described, hapax, people, tmp_path)

    def copies() -> bool:
        return copier.start().wait(120) == 0 and "AUTHORIZATION" not in copier.log()

    if described.groups:
        assert not copies(), "without rights"
        (tmp_path / "copy.log").unlink()
    with Admin(anybody) as admin:
        admin.create_acls(rights.bindings)
    assert copies(), copier.log()
    assert read_one(anybody, f"shop.{name}", "others") == 1


@pytest.mark.parametrize("own", ["positions", "offsets"])
def test_a_right_to_the_copy_s_own_topic_that_is_missing_is_told(
    hapax: LocalCluster, people: Logins, tmp_path: Path, own: str
) -> None:
    """A copy that does not follow ends, and goes on once the right is granted."""
    name = f"lacks-{own}"
    described, anybody = mirror(hapax.bootstrap, name, groups=["shop.*"]), {"bootstrap.servers": hapax.bootstrap}
    topics(hapax, name)
    assert write(anybody, name) == ""
    copier, rights = copier_of(described, hapax, people, tmp_path)
    topic = f"{described.group}.{own}"
    denial = rights.bindings[0]._replace(
        kind=ResourceType.TOPIC, name=topic, pattern=Pattern.LITERAL, operation=Operation.READ,
        permission=Permission.DENY)
    with Admin(anybody) as admin:
        admin.create_acls(rights.bindings)
        assert copier.start().wait(60) == 0, "the topic exists and is not empty"
        admin.create_acls([denial])
        assert copier.start().wait(60) == 1
        assert f"topic {topic!r} on the target" in copier.printed + copier.log(), copier.log()
        assert "needs Read, Write and Create on it" in copier.log()
        admin.delete_acls(Filter(*denial))
    assert copier.start().wait(60) == 0
    assert read_one(anybody, f"shop.{name}", "others") == 1
