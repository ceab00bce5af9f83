"""Which policy counts for a transactional id, and what it allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hapax.core.transaction.policy import UNLIMITED, TransactionPolicies, TransactionPolicy

names = st.text("ab-", max_size=3)


@st.composite
def policies(draw: st.DrawFn) -> TransactionPolicy:
    name = draw(names.filter(bool))
    whom = {"transactional_id": name} if draw(st.booleans()) else {"prefix": name}
    return TransactionPolicy(**whom, created=draw(st.sampled_from("123")), uid=draw(st.sampled_from("vwxyz")))


def test_the_oldest_of_those_that_cover_an_id_counts() -> None:
    known = TransactionPolicies()
    team = TransactionPolicy(prefix="team-", created="2026-01-02", uid="b")
    older = TransactionPolicy("team-a", created="2026-01-01", uid="c")
    later = TransactionPolicy("team-b", created="2026-01-02", uid="d")
    sooner = TransactionPolicy("team-d", created="2026-01-02", uid="a")
    for each in (team, older, later, sooner):
        known.put(each)
    assert [known.of(name) for name in ("team-a", "team-b", "team-d")] == [older, team, sooner]
    assert known.of("team-c") is team
    assert known.of("other") is UNLIMITED
    known.remove("b")
    assert known.of("team-c") is UNLIMITED


def test_allowed_topics_are_names_or_beginnings() -> None:
    policy = TransactionPolicy("a", allowed_topics=("orders", "billing-*"))
    assert [policy.allows(topic) for topic in ("orders", "orders-2", "billing-", "billing-x", "billing")] == [
        True, False, True, True, False]
    assert UNLIMITED.allows("anything") and not TransactionPolicy("a", allowed_topics=()).allows("anything")


@given(st.lists(policies()), names)
def test_it_finds_what_a_search_of_all_finds(given: list[TransactionPolicy], name: str) -> None:
    known, model = TransactionPolicies(), {}
    for each in given:
        known.put(each)
        model[each.uid] = each
    for uid in list(model)[::2]:
        known.remove(uid)
        del model[uid]
    covering = [each for each in model.values() if each.covers(name)]
    assert known.of(name) == min(covering, key=lambda each: each.age, default=UNLIMITED)
    assert {each.policy.uid for each in known} == set(model)


@given(policies(), policies(), names)
def test_what_covers_all_of_another_covers_each_of_its_ids(
    first: TransactionPolicy, second: TransactionPolicy, name: str
) -> None:
    if first.covers_all_of(second) and second.covers(name):
        assert first.covers(name)
