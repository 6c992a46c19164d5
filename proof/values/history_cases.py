"""Cases of histories: a job, and its events, drawn at random."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from proof.values.aggregates import Change, Counted
from proof.values.checking import with_smaller_parts, without_entries, without_parts
from proof.values.model import Spec
from proof.values.windows import Kind

WINDOWS = (
    Kind("tumbling", 10),
    Kind("tumbling", 20),
    Kind("tumbling", 10, offset=3),
    Kind("sliding", 10, 5),
    Kind("session", 5),
)
CRASHES = ("before the sink", "after the sink", "after the checkpoint")


PlainTuple = tuple[int, int, int | None]


@dataclass(frozen=True, slots=True)
class Event:
    """An event, and the rows of its batch.

    Attributes:
        name: The kind of event.
        number: Seed of its choices.
        rows: Key, time and number of each row. Times are milliseconds after the watermark.
    """

    name: str
    number: int
    rows: tuple[PlainTuple, ...]


@dataclass(frozen=True, slots=True)
class HistoryCase:
    """A job, and its events.

    Attributes:
        specs: Its aggregates by name.
        window: The windows of the aggregates, or None.
        expires: Whether the aggregates of a key expire.
        num_retained: Number of retained checkpoints.
        events: The events.
    """

    specs: Mapping[str, Spec]
    window: Kind | None
    expires: bool
    num_retained: int
    events: tuple[Event, ...]


_EVENTS = (
    *["batch"] * 6,
    *CRASHES,
    *["parallelism", "backend", "key type", "key name", "type", "type"],
    *["aggregates"] * 4,
    *["uid", "windows", "windows"],
    *["roll back"] * 3,
    *["savepoint", "fork", "fork", "move", "move", "new query", "new query"],
    *["the clock goes back"] * 2,
)


def draw_change(random: Random, counted: Mapping[str, Counted], number: int) -> Change:
    """Draw a change of aggregates."""
    renamed, added = [], []
    dropped: list[str] = []
    for name in counted:
        chance = random.random()
        if chance < 0.3:
            renamed.append((f"{name[:6]}r{number}", name))
        elif chance < 0.5 and len(dropped) < len(counted) - 1:
            dropped.append(name)
    if random.random() < 0.4:
        added.append((f"c{number}", _draw_spec(random)))
    is_reordered = random.random() < 0.3
    return Change(
        tuple(renamed), tuple(added), tuple(dropped), random.random() < 0.75, is_reordered
    )


def _draw_spec(random: Random) -> Spec:
    kind = random.choice(["count", "count", "sum", "min", "max", "avg", "first", "last"])
    if kind == "count" and random.random() < 0.5:
        return Spec(kind)
    return Spec(kind, "n", "t" if kind in {"first", "last"} else None)


def draw_case(random: Random) -> HistoryCase:
    """Draw a case."""
    specs = {f"a{index}": _draw_spec(random) for index in range(random.randint(1, 3))}
    window = random.choice(WINDOWS) if random.random() < 0.4 else None
    events = [Event("batch", random.randrange(1 << 30), _draw_rows(random))]
    for _ in range(random.randint(2, 9)):
        name = random.choice(_EVENTS)
        events.append(Event(name, random.randrange(1 << 30), _draw_rows(random)))
    return HistoryCase(
        specs,
        window,
        window is None and random.random() < 0.4,
        random.randint(1, 4),
        tuple(events),
    )


def _draw_rows(random: Random) -> tuple[PlainTuple, ...]:
    return tuple(
        (random.randint(1, 4), random.randint(-8, 30), random.choice([None, 1, -2, 7, 2**20]))
        for _ in range(random.choice([0, 1, 3, 5]))
    )


def smaller_cases(case: HistoryCase) -> Iterator[HistoryCase]:
    """Yield cases with fewer parts."""
    yield from without_parts(case, "events")
    yield from without_entries(case, "specs")
    yield from with_smaller_parts(case, "events", lambda event: without_parts(event, "rows"))
    if case.expires:
        yield replace(case, expires=False)
