"""`plan_etcd_care`: one thing at a time, the leader last, and alarms end when there is space."""

from __future__ import annotations

from dataclasses import replace

from hapax_operator.plan_etcd_care import (
    AlarmSeen,
    Attempt,
    Care,
    CareSeen,
    DatabaseSeen,
    Defragment,
    Disarm,
    HandOver,
    Prune,
    SnapshotSeen,
    TakeSnapshot,
    judged,
    plan_care,
)

CARE = Care(quota_bytes=1000, defragment_bytes=100, defragment_share=0.5, snapshot_every_s=0, snapshots_kept=2)
NOW = 1_000_000


def databases(*sizes: tuple[int, int]) -> list[DatabaseSeen]:
    """(file, used) of each; the first leads."""
    return [DatabaseSeen(f"{number}", number == 0, size, used) for number, (size, used) in enumerate(sizes)]


def condition(seen: CareSeen, kind: str, care: Care = CARE) -> tuple[str, str]:
    return next((each.status, each.reason) for each in plan_care(care, seen, NOW).conditions if each.type == kind)


def test_members_are_defragmented_one_at_a_time_and_the_leader_last() -> None:
    sizes = [(400, 100), (400, 100), (400, 100)]
    order = []
    for _ in range(3):
        step = plan_care(CARE, CareSeen(True, databases(*sizes)), NOW).step
        assert isinstance(step, Defragment | HandOver)
        if isinstance(step, HandOver):
            assert step == HandOver("0", "1")
            order.append("hand over")
            break
        order.append(step.member)
        sizes[int(step.member)] = (100, 100)
    assert order == ["1", "2", "hand over"]
    assert plan_care(CARE, CareSeen(True, databases((400, 201), (99, 0), (100, 51))), NOW).step is None


def test_nothing_is_done_while_a_member_is_down_or_changes() -> None:
    full = [AlarmSeen("1", "NOSPACE")]
    care = replace_care(snapshot_every_s=60)
    assert plan_care(care, CareSeen(False, databases((400, 100)), full), NOW).step is None


def test_a_member_that_is_alone_is_defragmented_only_when_nothing_can_be_written() -> None:
    alone = CareSeen(True, databases((950, 100)))
    assert plan_care(CARE, alone, NOW).step is None
    assert plan_care(CARE, replace(alone, alarms=[AlarmSeen("0", "NOSPACE")]), NOW).step == Defragment("0")


def test_an_alarm_for_space_ends_when_every_member_has_some() -> None:
    alarms = [AlarmSeen("1", "NOSPACE")]
    full = CareSeen(True, databases((950, 100), (100, 100)), alarms)
    assert isinstance(plan_care(CARE, full, NOW).step, HandOver)
    assert condition(full, "SpaceLeft") == ("False", "QuotaReached")
    spacious = CareSeen(True, databases((100, 100), (100, 100)), alarms)
    assert plan_care(CARE, spacious, NOW).step == Disarm(alarms[0])
    used = CareSeen(True, databases((950, 949), (950, 949)), alarms)
    assert plan_care(CARE, used, NOW).step is None
    assert condition(used, "SpaceLeft") == ("False", "QuotaReached")


def test_an_alarm_stays_until_the_members_run_with_the_quota_that_ends_it() -> None:
    raised = CareSeen(True, databases((100, 100)), [AlarmSeen("0", "NOSPACE")], current=False)
    assert plan_care(CARE, raised, NOW).step is None
    assert plan_care(CARE, replace(raised, current=True), NOW).step == Disarm(AlarmSeen("0", "NOSPACE"))


def test_an_alarm_for_damage_is_shown_and_stays() -> None:
    damaged = CareSeen(True, databases((100, 100)), [AlarmSeen("0", "CORRUPT")])
    assert plan_care(CARE, damaged, NOW).step is None
    assert condition(damaged, "SpaceLeft") == ("False", "Corrupt")


def replace_care(**changed: int) -> Care:
    return CARE._replace(**changed)


def test_snapshots_are_taken_on_time_from_a_follower_and_the_oldest_go() -> None:
    care = replace_care(snapshot_every_s=60)
    seen = CareSeen(True, databases((90, 90), (90, 90)), started_at=NOW)
    assert plan_care(care, seen, NOW).step == TakeSnapshot("1")
    taken = replace(seen, snapshots=[SnapshotSeen(f"{age}", NOW - age) for age in (190, 130, 70, 10)])
    planned = plan_care(care, taken, NOW)
    assert planned.step == Prune(("190", "130")) and planned.wait_s == 50
    assert plan_care(care, taken, NOW + 50).step == TakeSnapshot("1")


def test_a_failed_or_late_snapshot_is_shown() -> None:
    care = replace_care(snapshot_every_s=60)
    seen = CareSeen(True, databases((90, 90)), snapshots=[SnapshotSeen("a", NOW - 100)])
    assert condition(seen, "SnapshotTaken", care) == ("True", "OnSchedule")
    assert condition(replace(seen, snapshots=[SnapshotSeen("a", NOW - 121)]), "SnapshotTaken", care)[1] == "Late"
    failed = replace(seen, failed_at=NOW - 10)
    assert condition(failed, "SnapshotTaken", care) == ("False", "Failed")
    assert plan_care(care, failed, NOW).step is None, "not at once again"
    assert plan_care(care, failed, NOW + 290).step == TakeSnapshot("0")


def test_a_clock_that_was_ahead_neither_stops_snapshots_nor_keeps_old_ones_for_new() -> None:
    care, day = replace_care(snapshot_every_s=60), 86_400
    ahead = [SnapshotSeen(f"ahead-{each}", NOW + day + each) for each in range(2)]
    seen = CareSeen(True, databases((100, 100)), snapshots=ahead, started_at=NOW - 200)
    planned = plan_care(care, seen, NOW)
    assert isinstance(planned.step, TakeSnapshot)
    assert condition(seen, "SnapshotTaken", care) == ("False", "Late")
    taken = replace(seen, snapshots=[*ahead, SnapshotSeen("now", NOW)])
    assert plan_care(care, taken, NOW).step == Prune(("ahead-0",))
    assert condition(taken, "SnapshotTaken", care) == ("True", "OnSchedule")
    failed = replace(seen, snapshots=[], failed_at=NOW + day)
    assert isinstance(plan_care(care, failed, NOW).step, TakeSnapshot)


FULL = [AlarmSeen("1", "NOSPACE")]


def test_a_file_that_stays_large_is_not_defragmented_again_and_again() -> None:
    """Each time its member answers nothing. What is left unused is the store's own, whatever it is."""
    seen = CareSeen(True, databases((100, 100), (990, 890)), FULL)
    assert plan_care(CARE, seen, NOW).step == Defragment("1")
    tried = replace(seen, attempts={"1": Attempt(NOW)})
    assert plan_care(CARE, tried, NOW).step is None, "it has not been seen since"
    left = replace(tried, databases=databases((100, 100), (950, 890)))
    left = replace(left, attempts=judged(left.attempts, left.databases))
    assert left.attempts == {"1": Attempt(NOW, 60)}
    assert judged(left.attempts, seen.databases) == left.attempts, "by the first look after it"
    assert plan_care(CARE, left, NOW + 3599).step is None
    assert condition(left, "SpaceLeft") == ("False", "QuotaReached")
    (said,) = (each.message for each in plan_care(CARE, left, NOW).conditions)
    assert "raise etcd.quotaBytes" in said, "a person must do something"
    for grown in ((969, 890), (990, 925), (950, 871)):
        assert plan_care(CARE, replace(left, databases=databases((100, 100), grown)), NOW).step is None
    for grown in ((970, 890), (950, 870)):
        more = replace(left, databases=databases((100, 100), grown))
        assert plan_care(CARE, more, NOW).step == Defragment("1"), "more is unused than it left"
    assert plan_care(CARE, left, NOW + 3600).step == Defragment("1")
    failed = replace(left, attempts={"1": Attempt(NOW, 60, failed=True)})
    assert plan_care(CARE, failed, NOW + 299).step is None
    assert plan_care(CARE, failed, NOW + 300).step == Defragment("1"), "nothing can be written until it succeeds"
    assert plan_care(CARE, left, NOW - 1).step == Defragment("1"), "a clock that was ahead"


def test_a_full_member_is_not_defragmented_for_next_to_nothing() -> None:
    little = CareSeen(True, databases((100, 100), (905, 895)), FULL)
    planned = plan_care(CARE, little, NOW)
    assert planned.step is None and "raise etcd.quotaBytes" in planned.conditions[0].message
    assert plan_care(CARE, replace(little, databases=databases((100, 100), (915, 895))), NOW).step == Defragment("1")


def test_one_member_s_attempt_says_nothing_about_another() -> None:
    """Nor does the lead move for it."""
    seen = CareSeen(True, databases((400, 100), (400, 100), (400, 100)))
    tried = {each: Attempt(NOW, 300) for each in ("1", "2")}
    assert plan_care(CARE, replace(seen, attempts=tried), NOW).step == HandOver("0", "1")
    assert plan_care(CARE, replace(seen, attempts={**tried, "0": Attempt(NOW, 300)}), NOW).step is None


def test_snapshots_go_for_the_next_one_only_where_that_makes_room_for_it() -> None:
    """As many as it takes, never the last, and none if it would fail in spite of it."""
    care = replace_care(snapshot_every_s=60, snapshots_kept=8)
    stored = [SnapshotSeen(f"{age}", NOW - age, size) for age, size in ((400, 10), (300, 20), (200, 30), (100, 40))]

    def step(free: int | None, needed: int) -> object:
        seen = CareSeen(True, databases((needed, needed)), snapshots=stored, free_bytes=free)
        return plan_care(care, seen, NOW).step

    assert step(100, 100) == step(None, 100) == TakeSnapshot("0")
    assert step(95, 100) == step(90, 100) == Prune(("400",))
    assert step(89, 100) == Prune(("400", "300"))
    assert step(40, 100) == Prune(("400", "300", "200"))
    assert step(39, 100) == TakeSnapshot("0"), "without the last one it would have room, with it not"


def test_a_snapshot_is_not_of_a_member_that_lags_behind() -> None:
    """It answers and is healthy: after a long outage, or on a slow disk. What it lacks, its snapshot lacks too."""
    care = replace_care(snapshot_every_s=60)

    def of(*applied: int) -> object:
        """The first leads."""
        found = [each._replace(applied=entry) for each, entry in zip(
            databases(*[(90, 90)] * len(applied)), applied, strict=True)]
        return plan_care(care, CareSeen(True, found), NOW).step

    assert of(50_000, 49_500, 50_000) == TakeSnapshot("1")
    assert of(50_000, 20_000, 49_999) == TakeSnapshot("2")
    assert of(50_000, 20_000, 30_000) == TakeSnapshot("0")
