"""Users over time, and whether figures stay level."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hapax_load.__main__ import Watch
from hapax_load.shapes import SHAPES, users_at
from hapax_load.steadiness import Sample, Watched, slope, slopes, steady
from hapax_load.topics import number_of, value_of


def test_a_steady_load_is_all_there_after_ten_seconds() -> None:
    assert [users_at("steady", second, 20, 60) for second in (0, 5, 10, 59.9, 60)] == [1, 10, 20, 20, None]


def test_a_spike_is_in_the_middle() -> None:
    assert [users_at("spike", second, 30, 100) for second in (0, 39, 40, 59, 60, 100)] == [10, 10, 30, 30, 10, None]


@pytest.mark.parametrize("shape", SHAPES)
def test_there_is_always_somebody_until_the_end(shape: str) -> None:
    assert all(users_at(shape, second, 1, 30) == 1 for second in range(30))  # type: ignore[arg-type]


def test_a_slope_is_a_share_of_the_mean_in_ten_minutes() -> None:
    assert slope([(second, 100.0) for second in range(0, 1200, 10)]) == 0
    growing = [(second, 100 + second / 60) for second in range(0, 1201, 10)]  # 10 in ten minutes, 110 in the middle
    assert slope(growing) == pytest.approx(10 / 110)
    assert slope([(second, -value) for second, value in growing]) == pytest.approx(10 / 110)
    assert slope([]) == slope([(0, 1)]) == 0


def life(seconds: int, grown: float) -> Watched:
    samples = [
        Sample(second, 1000 if second >= 300 else 10 * second, 50, round(100 + grown * second))
        for second in range(0, seconds, 5)
    ]
    return Watched("broker-0", 1, 0.0, samples)


def test_the_beginning_of_a_life_does_not_count_and_a_short_one_is_not_judged() -> None:
    judged = slopes(life(1800, grown=0.1))
    assert judged is not None
    assert judged["resident"].share == pytest.approx(0, abs=0.001)
    assert judged["handles"].share == 0
    assert judged["tasks"].share > 0.2 and not judged["tasks"].level
    assert slopes(life(800, grown=0)) is None


@pytest.mark.parametrize("figure", ["resident", "handles", "tasks"])
def test_a_leak_of_any_kind_is_found(figure: str) -> None:
    """Of 2 % in ten minutes, under noise; half a percent is none."""
    def lived(leak: float) -> Watched:
        samples = []
        for second in range(0, 1800, 5):
            level = {"resident": 60e6, "handles": 4e4, "tasks": 4e4}
            level[figure] *= 1 + leak * second / 600 + 0.002 * (second % 15 - 5) / 5
            samples.append(Sample(second, *(round(level[each]) for each in ("resident", "handles", "tasks"))))
        return Watched("broker-0", 1, 0.0, samples)

    def judged(*lives: Watched) -> bool:
        found = {str(number): slopes(life) for number, life in enumerate(lives)}
        return steady({name: each for name, each in found.items() if each is not None})

    assert judged(lived(0), lived(0.005))
    assert not judged(lived(0), lived(0.02))
    assert not judged(), "nobody lived long enough: nothing is known"


@pytest.mark.parametrize("figure", ["handles", "tasks"])
def test_what_is_counted_in_wholes_grows_by_one_in_ten_minutes_at_least(figure: str) -> None:
    """Of 24 tasks that come and go, a quarter of one in ten minutes is 1 %: nobody can tell."""
    def found(leak: float) -> bool:
        lived = Watched("broker-0", 1, 0.0, [
            Sample(second, 60_000_000, *(
                24 + second // 5 * 7 % 5 + (int(leak * second / 600) if each == figure else 0)
                for each in ("handles", "tasks")
            )) for second in range(0, 1800, 5)])
        judged = slopes(lived)
        assert judged is not None
        return not judged[figure].level

    assert not found(0) and not found(0.5)
    assert found(2) and found(20)


def test_what_comes_and_goes_is_no_growth_and_hides_none() -> None:
    """As a broker's tasks do under load: 21 to 28 of them at any moment, and 22 on the average."""
    def level(leak: float, seed: int) -> bool:
        rng = random.Random(seed)
        judged = slopes(Watched("broker-0", 1, 0.0, [
            Sample(second, 60_000_000, 330, 21 + rng.choice((0, 0, 0, 0, 1, 1, 2, 3, 7)) + int(leak * second / 600))
            for second in range(0, 1500, 5)]))
        assert judged is not None
        return judged["tasks"].level

    assert [seed for seed in range(200) if not level(0, seed)] == []
    assert [seed for seed in range(200) if level(2, seed)] == []


def test_a_record_bears_its_number() -> None:
    value = value_of("abc", 17, 40)
    assert len(value) == 40 and number_of(value) == ("abc", 17)
    assert number_of(value_of("abc", 17, 0)) == ("abc", 17)
    with pytest.raises(ValueError):
        number_of(b"a stranger's")


def test_a_process_that_ended_by_itself_is_started_again_and_one_that_was_killed_is_its_killer_s() -> None:
    started: list[str] = []
    states = {"broker-0": "exited 1", "broker-1": "killed SIGKILL", "pid-0": "stopped"}
    cluster: Any = SimpleNamespace(
        status=lambda: SimpleNamespace(processes=[
            SimpleNamespace(name=name, state=state, pid=0, http_port=0) for name, state in states.items()]),
        start=lambda name, timeout: started.append(name))
    watch = Watch(cluster, time.time())
    watch()
    assert started == ["broker-0"] and [each.target for each in watch.ended] == ["broker-0 (by itself)"]
    assert watch.slopes() == {}
