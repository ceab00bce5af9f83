"""What a fuzzer is: a target makes an input from a number, and says what must hold for it."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any, Final, Protocol

SLOWEST_S: Final = 0.5
"""CPU time of one input. Honest ones take 0.02 to 2 ms."""

_SLOW_S: Final = 60.0


class Target(Protocol):
    name: str
    kinds: frozenset[str]
    """Answers that some of its inputs must get, or they do not reach what they are to break: at least how an honest
    input ends, and how one is refused at each step."""

    def make(self, rng: random.Random) -> Any:
        """An input: bytes by chance, or an honest one with some of its parts changed."""

    def check(self, made: Any) -> str:
        """Raises, whatever it be, if the program has a fault. Returns what kind of answer it was: a target that has
        only one is of no use."""


class Found(AssertionError):
    """The input that shows a fault."""

    def __init__(self, target: str, seed: int, number: int, made: Any, error: BaseException) -> None:
        super().__init__(
            f"{target}: {type(error).__name__}: {error}\ninput: {made!r}\n"
            f"again: PYTHONPATH=tests python -m security.fuzz {target} --seed {seed} --only {number}")


def fuzz(target: Target, seed: int, *, cases: int, seconds: float = 1e9, first: int = 0) -> Counter[str]:
    """Numbers of answers by kind. Raises Found. A busy machine goes on until each of the target's kinds is seen."""
    answers: Counter[str] = Counter()
    until = time.monotonic() + seconds
    for number in range(first, first + cases):
        if time.monotonic() > (until if target.kinds <= answers.keys() else until + _SLOW_S):
            break
        made = target.make(random.Random(f"{target.name} {seed} {number}"))
        began = time.thread_time()
        try:
            answers[target.check(made)] += 1
            took = time.thread_time() - began
            assert took < SLOWEST_S, f"it took {took:.2f} s of CPU"
        except Exception as error:
            raise Found(target.name, seed, number, made, error) from error
    return answers


_INTERESTING: Final = (b"\0", b",", b"=", b"\x01", b"\xff", b"\n", b'"', b"\\", b".", b"n,,", b"a=admin", b"$1", b"/")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """With one to four bytes, pieces or ends changed."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1:
                out[at:at] = rng.choice(_INTERESTING)
            case 2:
                del out[at : at + rng.randrange(1, 9)]
            case 3:
                piece = bytes(out[at : at + rng.randrange(1, 30)])
                out[at:at] = piece
            case 4:
                out[at:] = rng.randbytes(rng.randrange(20))
            case _:
                out[at:at] = rng.randbytes(rng.choice((1, 3, 200)))
    return bytes(out)


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "replace")
