"""The number of users over time. Pure."""

from __future__ import annotations

from typing import Final, Literal, get_args

Shape = Literal["steady", "spike", "soak"]
SHAPES: Final = get_args(Shape)
RAMP_S: Final = 10.0
"""Time until all users of a steady load or a soak have started."""


def users_at(shape: Shape, second: float, users: int, length: float) -> int | None:
    """The users at `second` of a run of `length` seconds; None: the run is over.

    steady: all users after ten seconds. spike: a third of them, and all in the middle fifth of the run.
    soak: as steady; more is measured.
    """
    if second >= length:
        return None
    if shape == "spike":
        return users if 0.4 <= second / length < 0.6 else max(1, users // 3)
    return max(1, min(users, round(users * second / RAMP_S)))
