"""The index of the resources finds what a search of all finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hapax_operator.resource_index import ResourceIndex
from hapax_operator.resources import (
    PRODUCERS,
    TOPICS,
    LeaseSpec,
    Meta,
    ProducerResource,
    Ref,
    Resource,
    TopicResource,
)

names = st.sampled_from("abcd")


def meta(plural: str, name: str, created: str) -> Meta:
    return Meta(ref=Ref(plural, "team", name), uid=name, generation=1, created=created)


topics = st.builds(lambda name, created, topic: TopicResource(meta=meta(TOPICS, name, created), topic=topic),
                   names, st.sampled_from("12"), st.sampled_from("xy"))
producers = st.builds(lambda name: ProducerResource(meta=meta(PRODUCERS, name, "1"), transactional_id=name), names)

leases = st.builds(
    lambda name, created, lease: ProducerResource(
        meta=meta(PRODUCERS, name, created), lease=LeaseSpec(lease, ("a-0",), 60)),
    names, st.sampled_from("12"), st.sampled_from("xy"))


@given(st.lists(topics | producers | leases | st.tuples(st.sampled_from([TOPICS, PRODUCERS]), names)))
def test_it_finds_what_a_search_finds(steps: list[Resource | tuple[str, str]]) -> None:
    index, model = ResourceIndex(), dict[Ref, Resource]()
    for step in steps:
        if isinstance(step, tuple):
            ref = Ref(step[0], "team", step[1])
            assert index.pop(ref) == model.pop(ref, None)
        else:
            assert index.put(step) == model.get(step.meta.ref)
            model[step.meta.ref] = step
    everything = list(model.values())
    for topic in "xy":
        found = [each for each in everything if isinstance(each, TopicResource) and each.topic == topic]
        assert index.claimants(topic) == sorted(found, key=lambda each: each.meta.age)
    assert set(index.topics()) == {each.topic for each in everything if isinstance(each, TopicResource)}
    for lease in "xy":
        held = [each for each in everything if isinstance(each, ProducerResource) and each.lease is not None
                and each.lease.name == lease]
        assert index.lessees(lease) == sorted(held, key=lambda each: each.meta.age)
    assert {each.meta.ref for each in index.producers()} == {ref for ref in model if ref.plural == PRODUCERS}
    assert all(index.get(ref) == each and ref in index for ref, each in model.items())
