"""Users as resources: a real API server, a real cluster with an authoriser, and clients that log in with what the
operator put into the Secret."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.logins import Logins, logins, set_password
from clients.secured import secured
from conftest import end_cluster, start_cluster
from hapax.client.blocking import Admin
from hapax.client.errors import HapaxError
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import Principal
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.local.cluster import LocalCluster
from hapax_kube.api import ApiError, KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace, OperatorProcess
from hapax_kube.users import (
    cluster_settings,
    operator_arguments,
    profile,
    read_one,
    service_account_token,
    topics,
    write,
    write_authority,
)
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

USERS = "users"
Start = Callable[..., OperatorProcess]
REFUSED = "TOPIC_AUTHORIZATION_FAILED"
NO_TOPIC = "CLUSTER_AUTHORIZATION_FAILED"
"""Of a producer's first call, where its user may write to no topic at all (KIP-679)."""
NOT_IN = "SASL_AUTHENTICATION_FAILED"


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Logins:
    return logins(secured(tmp_path_factory.mktemp("certificates")))


@pytest.fixture(scope="module")
def hapax(people: Logins, kube_api: KubeApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    people.key_set.write_text(kube_api.kubectl("get", "--raw", "/openid/v1/jwks").stdout)
    cluster = start_cluster(tmp_path_factory.mktemp("hapax"), settings=cluster_settings(people))
    yield cluster
    end_cluster(cluster)


@pytest.fixture
def operator(start_operator: Start, namespace: Namespace, people: Logins, tmp_path: Path) -> OperatorProcess:
    return start_operator(namespace, more=operator_arguments(people, tmp_path))


def acl(name: str, *operations: str, kind: str = "Topic", **more: Any) -> dict[str, Any]:
    return {"type": kind, "name": name, "operations": list(operations), **more}


def ready(namespace: Namespace, name: str) -> None:
    try:
        wait_until(lambda: namespace.ready(name, USERS), "ready User", 60)
    except AssertionError:
        raise AssertionError(namespace.get(USERS, name).get("status")) from None


def reason(namespace: Namespace, name: str, kind: str = "Ready") -> str:
    return namespace.condition(USERS, name, kind)[1]


def allow(principal: str, operation: Operation, topic: str) -> Binding:
    return Binding(
        ResourceType.TOPIC, topic, Pattern.LITERAL, Principal(principal), "*", operation, Permission.ALLOW)


def bindings(hapax: LocalCluster, namespace: Namespace) -> set[Binding]:
    """All that concern a principal of the namespace."""
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        return {each for each in admin.list_acls() if namespace.name in each.principal}


def test_a_user_logs_in_with_its_secret_and_does_what_its_acls_say(
    hapax: LocalCluster, namespace: Namespace, operator: OperatorProcess
) -> None:
    own, foreign, group = f"{namespace.name}.orders", f"other-{namespace.name}.orders", f"{namespace.name}.readers"
    topics(hapax, own, foreign)
    namespace.user("app", acls=[acl(own, "Read", "Write"), acl(group, "Read", kind="Group")],
                   quotas={"producerByteRate": 900_000})
    ready(namespace, "app")
    secret, settings = namespace.secret("app"), profile(namespace, "app")
    assert len(secret["password"]) >= 43 and secret["username"] == f"{namespace.name}.app"
    assert {"bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.jaas.config", "ca.crt"} < secret.keys()
    assert (write(settings, own), write(settings, foreign)) == ("", REFUSED)
    assert read_one(settings, own, group) == 1
    with pytest.raises(HapaxError, match="GROUP_AUTHORIZATION_FAILED"):
        read_one(settings, own, f"other-{group}")
    status = namespace.get(USERS, "app")["status"]
    assert status["principal"] == f"User:{namespace.name}.app" and status["acls"]["inForce"] == 3
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        quotas = admin.list_quotas()
    assert quotas[("user", f"{namespace.name}.app"),] == {"producer_byte_rate": 900_000}

    namespace.patch(USERS, "app", acls=[acl(own, "Read")], quotas=None)
    wait_until(lambda: write(settings, own) == NO_TOPIC, "end of the right to write", 60)
    ready(namespace, "app")
    assert {each.operation for each in bindings(hapax, namespace)} == {Operation.READ}


def test_a_rotation_leaves_the_former_password_for_a_while(
    hapax: LocalCluster, namespace: Namespace, operator: OperatorProcess
) -> None:
    topic = f"{namespace.name}.t"
    topics(hapax, topic)
    namespace.user("app", authentication={"overlapSeconds": 12}, acls=[acl(topic, "Write")])
    ready(namespace, "app")
    former = profile(namespace, "app")
    namespace.patch(USERS, "app", rotate="1")
    wait_until(lambda: namespace.get(USERS, "app")["status"].get("rotated") == "1", "rotation", 60)
    now = profile(namespace, "app")
    assert now["sasl.jaas.config"] != former["sasl.jaas.config"]
    assert (former["sasl.mechanism"], now["sasl.mechanism"]) == ("SCRAM-SHA-512", "SCRAM-SHA-256")
    assert (write(now, topic), write(former, topic)) == ("", "")
    assert "formerPasswordUntil" in namespace.get(USERS, "app")["status"]
    wait_until(lambda: write(former, topic) == NOT_IN, "end of the former password", 60)
    assert write(now, topic) == "" and "PasswordRotated" in namespace.events()
    assert "formerPasswordUntil" not in namespace.get(USERS, "app")["status"]


def test_a_secret_that_was_altered_or_deleted_is_put_right(
    hapax: LocalCluster, namespace: Namespace, operator: OperatorProcess
) -> None:
    topic = f"{namespace.name}.t"
    topics(hapax, topic)
    namespace.user("app", acls=[acl(topic, "Write")])
    ready(namespace, "app")
    path = f"/api/v1/namespaces/{namespace.name}/secrets/app"
    for number, harm in enumerate((
        lambda: namespace.api.patch(path, {"stringData": {"password": "guessed"}}),
        lambda: namespace.api.delete(path),
    )):
        former = namespace.secret("app")["password"]
        harm()
        namespace.annotate(USERS, "app", look=str(number))  # a change wakes the operator, which looks by itself later
        wait_until(lambda former=former: namespace.secret("app").get("password", former) not in (  # type: ignore[misc]
            former, "guessed"), "another password", 60)
        ready(namespace, "app")
        assert write(profile(namespace, "app"), topic) == ""


def test_a_deleted_user_is_out_at_once_and_what_others_made_stays(
    hapax: LocalCluster, namespace: Namespace, operator: OperatorProcess, start_operator: Start, people: Logins,
    tmp_path: Path,
) -> None:
    topic, principal = f"{namespace.name}.t", f"User:{namespace.name}.app"
    topics(hapax, topic)
    by_hand = allow(principal, Operation.DESCRIBE, topic)
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        admin.create_acls([by_hand])
    namespace.user("app", acls=[acl(topic, "Write", "Describe")])
    ready(namespace, "app")
    assert namespace.get(USERS, "app")["status"]["acls"]["ofOthers"] == 1
    settings = profile(namespace, "app")
    assert write(settings, topic) == ""

    operator.kill()  # the deletion waits for the next one
    namespace.delete(USERS, "app")
    assert namespace.exists(USERS, "app") and write(settings, topic) == ""
    start_operator(namespace, more=operator_arguments(people, tmp_path))
    wait_until(lambda: not namespace.exists(USERS, "app"), "end of the resource", 60)
    assert write(settings, topic) == NOT_IN and not namespace.secret("app")
    assert bindings(hapax, namespace) == {by_hand}


def test_what_a_resource_without_its_finalizer_left_is_removed_by_the_next_operator(
    hapax: LocalCluster, namespace: Namespace, operator: OperatorProcess, start_operator: Start, people: Logins,
    tmp_path: Path,
) -> None:
    topic = f"{namespace.name}.t"
    topics(hapax, topic)
    namespace.user("app", acls=[acl(topic, "Write")], quotas={"consumerByteRate": 5})
    ready(namespace, "app")
    settings = profile(namespace, "app")
    operator.kill()
    namespace.api.patch(namespace.path(USERS, "app"), {"metadata": {"finalizers": None}})
    namespace.delete(USERS, "app")
    wait_until(lambda: not namespace.exists(USERS, "app"), "end of the resource", 30)
    assert write(settings, topic) == ""
    start_operator(namespace, more=operator_arguments(people, tmp_path))
    wait_until(lambda: write(settings, topic) == NOT_IN and not bindings(hapax, namespace), "end of its rights", 60)


def test_a_namespace_takes_nothing_that_the_policy_does_not_give_it(
    hapax: LocalCluster, namespace: Namespace, operator: OperatorProcess
) -> None:
    own, foreign = f"{namespace.name}.t", f"other-{namespace.name}"
    topics(hapax, own, foreign)
    namespace.user("foreign", authentication={"userName": f"{foreign}.app"}, acls=[acl(own, "Read")])
    namespace.user("greedy", acls=[
        acl(own, "Write"), acl(foreign, "Write"), acl("*", "Read"), acl(namespace.name, "Read", pattern="Prefixed"),
        {"type": "Cluster", "operations": ["Alter"]}])
    namespace.topic("taken", topicName=f"{foreign}.new", deletionPolicy="Delete")
    namespace.producer("taken", transactionalId=f"{foreign}.loader", allowedTopics=["none"])
    wait_until(lambda: reason(namespace, "foreign") == "OutsidePolicy", "refusal of the user", 60)
    wait_until(lambda: reason(namespace, "greedy", "AclsInForce") == "OutsidePolicy", "refusal of the ACLs", 60)
    wait_until(lambda: namespace.condition("topics", "taken")[1] == "OutsidePolicy", "refusal of the topic", 60)
    wait_until(lambda: namespace.condition("transactionalproducers", "taken")[1] == "OutsidePolicy", "of the id", 60)
    assert not namespace.secret("foreign")
    assert bindings(hapax, namespace) == {allow(f"User:{namespace.name}.greedy", Operation.WRITE, own)}
    settings = profile(namespace, "greedy")
    assert (write(settings, own), write(settings, foreign)) == ("", REFUSED)
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        assert f"{foreign}.new" not in {each.name for each in admin.list_topics()}
    assert namespace.get("topics", "taken")["metadata"].get("finalizers") is None


def test_a_user_that_was_made_by_hand_is_not_taken_over(
    hapax: LocalCluster, namespace: Namespace, operator: OperatorProcess
) -> None:
    name = f"{namespace.name}.app"
    set_password(hapax.bootstrap, name, "by hand, by somebody")
    namespace.user("app")
    wait_until(lambda: reason(namespace, "app") == "ForeignPassword", "refusal", 60)
    assert not namespace.secret("app")
    namespace.delete(USERS, "app")
    wait_until(lambda: not namespace.exists(USERS, "app"), "end of the resource", 60)
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        assert [each.user for each in admin.describe_user_scram_credentials([name])] == [name, name]


def test_the_older_of_two_resources_of_a_user_counts_until_it_goes(
    hapax: LocalCluster, namespace: Namespace, operator: OperatorProcess
) -> None:
    name = f"{namespace.name}.shared"
    first = namespace.user("first", authentication={"userName": name})
    ready(namespace, "first")
    second = namespace.user("second", authentication={"userName": name})
    older, newer = sorted((first, second), key=lambda each: (
        each["metadata"]["creationTimestamp"], each["metadata"]["uid"]))
    older, newer = older["metadata"]["name"], newer["metadata"]["name"]
    wait_until(lambda: reason(namespace, newer) == "ResourceConflict", "conflict", 60)
    ready(namespace, older)
    assert namespace.secret(older) and not namespace.secret(newer)
    former = profile(namespace, older)
    namespace.delete(USERS, older)
    ready(namespace, newer)
    topics(hapax, f"{namespace.name}.t")
    assert write(former, f"{namespace.name}.t") == NOT_IN
    assert write(profile(namespace, newer), f"{namespace.name}.t") == NO_TOPIC, "it is in, and may do nothing"


def test_a_pod_logs_in_with_the_token_of_its_service_account(
    hapax: LocalCluster, namespace: Namespace, operator: OperatorProcess, tmp_path: Path
) -> None:
    own, foreign = f"{namespace.name}.t", f"other-{namespace.name}"
    topics(hapax, own, foreign)
    namespace.user("runner", "WorkloadIdentity", acls=[acl(own, "Write")])
    ready(namespace, "runner")
    settings = profile(namespace, "runner")
    assert settings.pop("sasl.oauthbearer.token.endpoint.url") == "file:///var/run/secrets/hapax/token"
    (tmp_path / "token").write_text(service_account_token(namespace, "runner"))
    settings["sasl.oauthbearer.token.endpoint.url"] = (tmp_path / "token").as_uri()
    assert (write(settings, own), write(settings, foreign)) == ("", REFUSED)
    (tmp_path / "token").write_text(service_account_token(namespace, "other"))
    assert write(settings, own) == NO_TOPIC, "another account's pods have no such right"


def test_a_user_with_a_certificate(
    hapax: LocalCluster, namespace: Namespace, start_operator: Start, people: Logins, tmp_path: Path
) -> None:
    """First there is no authority for it."""
    topic = f"{namespace.name}.t"
    topics(hapax, topic)
    first = start_operator(namespace, more=operator_arguments(people, tmp_path))
    namespace.user("app", "Tls", authentication={"validityDays": 3}, acls=[acl(topic, "Write")])
    wait_until(lambda: reason(namespace, "app", "CredentialInForce") == "NoAuthority", "condition", 60)
    wait_until(lambda: reason(namespace, "app", "AclsInForce") == "AsDescribed", "ACLs", 60)
    first.stop()
    start_operator(namespace, more=operator_arguments(
        people, tmp_path, clients={"authorityFolder": str(write_authority(people))}))
    ready(namespace, "app")
    settings = profile(namespace, "app")
    assert settings["security.protocol"] == "SSL" and {"tls.crt", "tls.key"} < namespace.secret("app").keys()
    assert write(settings, topic) == ""
    namespace.patch(USERS, "app", rotate="1")
    wait_until(lambda: namespace.get(USERS, "app")["status"].get("rotated") == "1", "rotation", 60)
    renewed = profile(namespace, "app")
    assert renewed["ssl.keystore.key"] != settings["ssl.keystore.key"] and write(renewed, topic) == ""


def test_a_bad_user_is_refused_with_a_sentence(namespace: Namespace) -> None:
    def refusal(**spec: Any) -> str:
        with pytest.raises(ApiError) as refused:
            namespace.user("bad", **spec)
        return refused.value.message

    for spec, sentence in (
        ({"login": "Plain"}, "supported values"),
        ({"authentication": {"userName": "a:b"}}, "ASCII letters, digits"),
        ({"authentication": {"userName": "ANONYMOUS"}}, "clients that do not log in"),
        ({"authentication": {"serviceAccountName": "a"}}, "is for the type WorkloadIdentity"),
        ({"login": "WorkloadIdentity", "authentication": {"userName": "a"}}, "give serviceAccountName"),
        ({"login": "Tls", "authentication": {"mechanism": "SCRAM-SHA-256"}}, "are for the type Scram"),
        ({"login": "Tls", "authentication": {"userName": "a" * 65}}, "at most 64 characters"),
        ({"authentication": {"validityDays": 3}}, "is for the type Tls"),
        ({"acls": [{"type": "Topic", "operations": ["Read"]}]}, "names its resource"),
        ({"acls": [{"type": "Cluster", "operations": ["ClusterAction"]}]}, "not for users"),
        ({"acls": [{"type": "Cluster", "operations": ["All"]}]}, "not for users"),
        ({"acls": [acl("t", "Reed")]}, "supported values"),
        ({"acls": [acl("t", "Read", hosts=["here"])]}, "a host is an IP address"),
        ({"acls": [acl("*", "Read", pattern="Prefixed")]}, "as a Literal"),
        ({"quotas": {"producerByteRate": 0}}, "greater than or equal to 1"),
        ({"secretName": "A"}, "small letters"),
    ):
        assert sentence in refusal(**spec), json.dumps(spec)
    body = namespace.user("good", acls=[acl("t", "Read")])
    assert body["spec"]["acls"][0] == acl("t", "Read", pattern="Literal", permission="Allow")
    for change, sentence in (
        ({"authentication": {"type": "Tls"}}, "the type cannot be changed"),
        ({"authentication": {"type": "Scram", "userName": "x"}}, "userName cannot be changed"),
        ({"secretName": "other"}, "secretName cannot be changed"),
    ):
        with pytest.raises(ApiError, match=sentence):
            namespace.patch(USERS, "good", **change)


def test_the_example_is_one(namespace: Namespace, tmp_path: Path) -> None:
    text = (ROOT / "charts" / "hapax" / "examples" / "users.yaml").read_text()
    example = tmp_path / "users.yaml"
    example.write_text(text.replace("namespace: shop}", f"namespace: {namespace.name}}}"))
    done = namespace.api.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(example))
    assert done.returncode == 0 and done.stdout.count("created") == 6, done.stderr
