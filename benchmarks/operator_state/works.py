"""The measured states, and the interface of an engine."""

import array
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from benchmarks.rounds import Cost

TARGETS = ("memory", "disk")
"""Targets of snapshots."""


@dataclass
class Reading:
    """A record of 100 bytes: three numbers of 8, and a string of 76."""

    id: int
    at_ms: int
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Work:
    """A state.

    Attributes:
        kind: Name of the type of elements on both sides: `longs`, `strings`, `records` or `broadcast`.
        count: Number of elements.
        element_bytes: Minimum size of an element, without its length.
        in_arrow: Whether a stream could pass the elements in an Arrow array of the same type.
    """

    name: str
    title: str
    kind: str
    count: int
    element_bytes: int
    in_arrow: bool = False

    @property
    def raw_bytes(self) -> int:
        """Minimum size of all elements."""
        return self.count * self.element_bytes


LONGS = Work("longs", "list of 1 M int64", "longs", 1_000_000, 8, in_arrow=True)

TEN_TIMES_LONGS = Work("longs10", "list of 10 M int64", "longs", 10_000_000, 8, in_arrow=True)

WORKS = [
    LONGS,
    Work("strings", "list of 100,000 strings of 100", "strings", 100_000, 100, in_arrow=True),
    Work("records", "list of 100,000 records of 100", "records", 100_000, 100),
    Work("broadcast", "broadcast, 100,000 of 16 to 100", "broadcast", 100_000, 116),
]


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one engine.

    Attributes:
        costs: By action.
        sizes: Bytes of the `stored` state, and of the `metadata`.
    """

    costs: dict[str, Cost]
    sizes: dict[str, int]


class Engine(Protocol):
    """An engine that keeps operator state."""

    def measure(self, work: Work, target: str) -> Measured:
        """Fill a state, take a snapshot, restore it, and compare.

        Raises:
            LeftOutError: It can't, or what was restored is something else.
        """
        ...


@lru_cache(maxsize=2)  # 10 M integers take 400 MB
def elements_of(kind: str, count: int) -> Any:
    """Return the elements of a state: a list, or a dictionary for broadcast state."""
    source = random.Random(7)  # noqa: S311  # no secret
    match kind:
        case "longs":
            return array.array("q", source.randbytes(8 * count)).tolist()
        case "strings":
            return _texts(source, count, 100)
        case "records":
            return [
                Reading(
                    source.getrandbits(63),
                    1_700_000_000_000 + source.getrandbits(30),
                    source.random(),
                    text,
                )
                for text in _texts(source, count, 76)
            ]
        case "broadcast":
            return {text: source.randbytes(100) for text in _texts(source, count, 16)}
        case _:
            message = f"there are no elements of kind {kind!r}"
            raise ValueError(message)


def _texts(source: random.Random, count: int, length: int) -> Sequence[str]:
    letters = string.ascii_lowercase
    return ["".join(source.choices(letters, k=length)) for _ in range(count)]
