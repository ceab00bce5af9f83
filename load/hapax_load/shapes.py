"""How many users there are at which moment of a run. Pure."""

from __future__ import annotations

from typing import Final, Literal, get_args

Shape = Literal["steady", "spike", "soak"]
SHAPES: Final = get_args(Shape)
RAMP_S: Final = 10.0
"""Until all users of a steady load or of a soak are there."""


def users_at(shape: Shape, second: float, users: int, length: float) -> int | None:
    """Users of a run of `length` seconds in its `second`; None: it is over.

    steady: all of them after ten seconds. spike: a third, and all of them in the middle fifth of the run.
    soak: as steady; it differs in what is measured.
    """
    if second >= length:
        return None
    if shape == "spike":
        return users if 0.4 <= second / length < 0.6 else max(1, users // 3)
    return max(1, min(users, round(users * second / RAMP_S)))
