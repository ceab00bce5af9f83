"""The racks of machines, and the brokers that have none."""

from __future__ import annotations

from hapax.codec.metadata import RacksRecord
from hapax_operator.plan_racks import BrokerPod, next_to_ask, plan_racks, racks_condition

PODS = [BrokerPod("b-0", "m0"), BrokerPod("b-1", "m1"), BrokerPod("b-2", "")]


def test_each_machine_has_the_value_of_its_label() -> None:
    planned = plan_racks("zone", PODS, {"m0": "a", "m1": ""}, RacksRecord())
    assert planned.record == RacksRecord("zone", {"m0": "a", "m1": ""})
    assert planned.unknown == {1: "b-1: node m1 has no label zone"}, "a pod without a machine is not told of"


def test_a_machine_without_a_pod_is_remembered_until_its_node_is_gone() -> None:
    former = RacksRecord("zone", {"m0": "a", "m1": "b", "m2": "c", "m3": "d"})
    planned = plan_racks("zone", PODS, {"m2": None, "m3": "e"}, former)
    assert planned.record.machines == {"m0": "a", "m1": "b", "m3": "e"} and not planned.unknown


def test_a_node_that_is_gone_for_a_moment_does_not_move_the_broker_that_still_runs() -> None:
    planned = plan_racks("zone", PODS, {"m0": None, "m1": None}, RacksRecord("zone", {"m0": "a"}))
    assert planned.record.machines == {"m0": "a"}
    assert planned.unknown == {1: "b-1: node m1 is not known"}


def test_another_label_forgets_what_the_former_one_said() -> None:
    planned = plan_racks("row", PODS, {"m0": "1"}, RacksRecord("zone", {"m0": "a", "m1": "b"}))
    assert planned.record == RacksRecord("row", {"m0": "1"}) and set(planned.unknown) == {1}


def test_machines_that_were_never_asked_about_come_first_and_then_a_few_at_a_time() -> None:
    assert next_to_ask({"m1", "m0"}, ["m2"], {}) == ["m0", "m1", "m2"]
    assert next_to_ask({"m1", "m0"}, ["m2", "m3"], {"m0": 3.0, "m1": 2.0, "m2": 1.0}) == ["m3", "m2", "m1"]
    assert next_to_ask({"m1", "m3"}, ["m1"], {"m1": 2.0}) == ["m3", "m1"]
    assert next_to_ask((), (), {}) == []


def test_the_condition_names_pods_and_brokers_that_have_not_taken_theirs() -> None:
    known = racks_condition({}, {0: "a", 1: "b"})
    assert (known.status, known.reason) == ("True", "Labelled")
    unknown = racks_condition({1: "b-1: node m1 has no label zone"}, {0: "", 1: ""})
    assert (unknown.status, unknown.reason) == ("False", "RackUnknown")
    assert unknown.message == "broker 0 has not taken its rack; b-1: node m1 has no label zone"
    many = racks_condition({each: f"b-{each}" for each in range(8)}, {})
    assert many.message.endswith("b-4, and 3 more")
