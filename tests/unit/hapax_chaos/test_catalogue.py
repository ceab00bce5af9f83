"""The catalogue, and the records that clients leave behind."""

from __future__ import annotations

from pathlib import Path

from hapax_chaos.catalogue import scenarios, secure_scenarios, without_namespaces
from hapax_chaos.history import HistoryFile, merge


def test_there_are_enough_scenarios_and_each_has_a_name_of_its_own() -> None:
    names = [scenario.name for scenario in scenarios()]
    assert len(set(names)) == len(names) >= 133


def test_only_what_is_about_packets_needs_namespaces() -> None:
    here = {scenario.name for scenario in map(without_namespaces, scenarios()) if scenario is not None}
    assert {"kill@leader", "late@END_TXN", "clock-jumps@nodes", "full-disk@leader"} <= here
    assert not any("net-" in name for name in here)
    assert len(here) >= 133


def test_every_scenario_exists_in_a_secure_cluster_too() -> None:
    secure = secure_scenarios()
    names = {scenario.name for scenario in secure}
    assert {f"secure:{scenario.name}" for scenario in scenarios()} < names
    assert all(scenario.layout.secure for scenario in secure)
    assert not any(scenario.layout.secure for scenario in scenarios())
    for wanted in ("rotate", "authorities", "password@client", "user@client", "revoke-topic@client",
                   "sessions+kill@leader", "clock-past-certificates@nodes", "clock-past-tokens@nodes"):
        assert f"secure:{wanted}" in names


def test_histories_merge_in_the_order_of_time_and_forget_half_a_line(tmp_path: Path) -> None:
    first, second = HistoryFile(tmp_path / "1"), HistoryFile(tmp_path / "2")
    first.process, second.process = "a", "b"
    first.write("invoke", "txn", [["poll"]])
    second.note("assign", ["t-0"])
    first.write("ok", "txn", [["poll", {}]])
    with (tmp_path / "2").open("ab") as file:
        file.write(b'{"process":"b","time":')
    merged = merge([tmp_path / "1", tmp_path / "2"])
    assert [(o.index, o.process, o.type) for o in merged] == [
        (0, "a", "invoke"), (1, "b", "invoke"), (2, "b", "ok"), (3, "a", "ok"),
    ]
    assert merged[0].time == 0.0
