"""What a campaign keeps of each history, and the page that sums it up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hapax_sim import results
from hapax_sim.scenes import SCENES
from hapax_sim.simulation import Result, Scene

SCENE = SCENES["light"]


def line(seed: int, revision: str, *anomalies: str, scene: Scene = SCENE) -> dict[str, object]:
    faults = Counter({"kill": 2, "freeze": seed})
    result = Result(seed, 72.0, 10.0, 100, 90, faults, anomalies=list(anomalies), trace_hash="ab")
    return results.line(result, scene, "light", "code", revision)


def test_a_history_is_known_again_by_code_seed_and_scene(tmp_path: Path) -> None:
    path = tmp_path / "build" / "results.jsonl"
    assert results.known(path) == {}
    results.append(path, line(1, "abc"))
    results.append(path, line(2, "abc", "lost-write: x"))
    known = results.known(path)
    assert known[results.key("code", 2, SCENE)]["anomalies"] == ["lost-write: x"]
    assert results.key("code", 3, SCENE) not in known
    assert results.key("other code", 1, SCENE) not in known
    assert results.key("code", 1, SCENES["lively"]) not in known


def test_the_digest_says_which_code_ran() -> None:
    assert results.code_digest() == results.code_digest() != ""


def test_the_page_sums_up_one_commit_and_keeps_the_others() -> None:
    first = results.page([line(1, "abc"), line(2, "abc"), line(4, "abc", "duplicate: y")], [])
    assert "| abc | light 60 s | 1-2, 4 | 0.06 | 300 | 270 | 13 | 2 | seeds 4 | 6.0 |" in first
    assert "| **abc** | all | 3 histories | 0.06 | 300 | 270 | 13 | 2 | seeds 4 | 6.0 |" in first
    second = results.page([line(9, "def")], results.rows_of(first))
    assert [row.split(" | ")[0] for row in results.rows_of(second)] == ["| abc", "| **abc**", "| def", "| **def**"]
    again = results.page([line(9, "def"), line(10, "def")], results.rows_of(second))
    assert len(results.rows_of(again)) == 4 and "| 9-10 |" in again
