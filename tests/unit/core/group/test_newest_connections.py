"""Which of a member's connections counts for its plain commits."""

from __future__ import annotations

from hapax.core.group import newest_connections
from hapax.core.group.newest_connections import CommitConnections


def test_the_members_of_a_group_have_connections_of_their_own() -> None:
    connections = CommitConnections(-1)
    connections.note("g", "a", 5, lambda *_: True)
    assert connections.is_older("g", "a", 4)
    assert not connections.is_older("g", "a", 5) and not connections.is_older("g", "b", 4)
    assert not connections.is_older("h", "a", 4), "the same id in another group"


def test_after_a_load_members_that_it_found_count_over_newer_connections_only() -> None:
    connections = CommitConnections(7)
    connections.loaded([("g", "a")])
    assert connections.is_older("g", "a", 7) and not connections.is_older("g", "a", 8)
    assert not connections.is_older("g", "new", 3), "it has committed nothing that could come late"


def test_members_that_have_gone_are_forgotten_in_time() -> None:
    connections = CommitConnections(-1)
    stays = newest_connections._LEAST_PRUNED // 2
    for number in range(10 * newest_connections._LEAST_PRUNED):
        connections.note("g", f"m{number}", number, lambda group, member: int(member[1:]) < stays)
    assert len(connections) <= newest_connections._LEAST_PRUNED
    assert connections.is_older("g", "m9", 8), "a member that is there is not forgotten"
