"""The deadlines of a shard against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hapax.core.group.deadlines import Deadline, Deadlines
from hapax.core.types import Millis

KEYS = [Deadline("g", kind, member) for kind in ("session", "round") for member in ("a", "b", "")]
STEPS = st.lists(st.one_of(
    st.tuples(st.just("set"), st.sampled_from(KEYS), st.integers(0, 50)),
    st.tuples(st.just("clear"), st.sampled_from(KEYS), st.just(0)),
    st.tuples(st.just("take"), st.just(KEYS[0]), st.integers(0, 10)),
), max_size=60)  # fmt: skip


@given(STEPS)
def test_each_is_taken_once_and_never_early(steps: list[tuple[str, Deadline, int]]) -> None:
    made, model, now = Deadlines(), dict[Deadline, int](), 0
    for what, key, number in steps:
        if what == "set":
            made.set(key, Millis(now + number))
            model[key] = now + number
        elif what == "clear":
            made.clear(key)
            model.pop(key, None)
        else:
            now += number
            due = made.take_due(Millis(now))
            expected = {key for key, at in model.items() if at <= now}
            assert set(due) == expected and len(due) == len(expected)
            for key in expected:
                del model[key]
        following = made.next()
        if model:
            assert following is not None and following <= min(model.values())
        for key in KEYS:
            assert made.get(key) == model.get(key)
    # Whoever wakes at `next` and takes what is due comes to the end.
    for _ in range(200):
        following = made.next()
        if following is None:
            break
        made.take_due(following)
    assert made.next() is None
