"""Names of the cluster's processes, and who may call what."""

from __future__ import annotations

import pytest

from hapax.core.access.services import CALLERS, ROLES, ServiceName, may_call


@pytest.mark.parametrize("name", [
    ServiceName("shop", "broker", 0), ServiceName("sh_op-1", "coordinator", 100), ServiceName("shop", "pid"),
    ServiceName("shop", "controller", 300), ServiceName("Shop", "admin"),
])
def test_a_name_is_read_as_it_is_written(name: ServiceName) -> None:
    assert ServiceName.parse(str(name)) == name


@pytest.mark.parametrize("uri", [
    "spiffe://shop/broker", "spiffe://shop/coordinator/", "spiffe://shop/broker/01", "spiffe://shop/broker/-1",
    "spiffe://shop/client/1", "spiffe://shop/root", "spiffe:///broker/0", "spiffe://shop/broker/0/1",
    "https://shop/broker/0", "spiffe://shop/broker/0\n", "spiffe://a.b/broker/0", "spiffe://shop/Broker/0", "",
])
def test_what_is_no_name_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"spiffe|names no"):
        ServiceName.parse(uri)


@pytest.mark.parametrize(("proven", "wanted", "fits"), [
    ("spiffe://a/broker/0", "spiffe://a/broker/0", True),
    ("spiffe://a/broker/1", "spiffe://a/broker/0", False),
    ("spiffe://a/coordinator/0", "spiffe://a/broker/0", False),
    ("spiffe://b/broker/0", "spiffe://a/broker/0", False),
    ("spiffe://a/pid", "spiffe://a/pid/203", True),
    ("spiffe://a/pid/203", "spiffe://a/pid", True),
    ("spiffe://a/pid/203", "spiffe://a/pid/204", False),
    ("spiffe://a/pid", "spiffe://a/controller", False),
])
def test_who_stands_for_whom(proven: str, wanted: str, fits: bool) -> None:
    assert ServiceName.parse(proven).stands_for(ServiceName.parse(wanted)) is fits


def test_no_user_has_the_principal_of_a_process() -> None:
    assert ServiceName("a", "broker", 3).principal == "Service:broker/3"
    assert ServiceName("a", "pid").principal == "Service:pid"


@pytest.mark.parametrize(("role", "method"), [
    ("pid", "PartitionBroker/WriteMarkers"), ("pid", "Controller/DeleteTopics"), ("pid", "TxnCoordinator/AbortHanging"),
    ("broker", "PartitionBroker/WriteMarkers"), ("broker", "PartitionBroker/FenceProducer"),
    ("coordinator", "PartitionBroker/FenceProducer"), ("coordinator", "PartitionBroker/FetchSnapshot"),
    ("controller", "PidAllocator/AllocateBlock"), ("admin", "Controller/DeleteTopics"),
    ("client", "Controller/AlterAcls"),
])
def test_a_role_may_not_do_what_it_has_no_need_of(role: str, method: str) -> None:
    assert not may_call(role, f"/hapax.internal.v1.{method}")


def test_what_the_table_does_not_name_is_for_no_role() -> None:
    for role in ROLES:
        assert not may_call(role, "/hapax.internal.v1.PartitionBroker/Unheard")
        assert not may_call(role, "/hapax.v1.ClusterAdmin/DeleteTopics")
    assert all(callers <= set(ROLES) and callers for callers in CALLERS.values())
