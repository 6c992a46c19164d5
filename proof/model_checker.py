"""An exhaustive checker: all states that a system can reach, the nearest first."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True)
class Explored(Generic[State]):
    """The result of an exploration.

    Attributes:
        states: Number of different states.
        steps: Number of steps between them.
        problem: The violation in the first bad state, or None.
        trace: The shortest sequence of steps to it.
    """

    states: int
    steps: int
    problem: str | None = None
    trace: tuple[str, ...] = ()


def explore(
    first: State,
    steps_of: Callable[[State], Iterable[tuple[str, State]]],
    problem_in: Callable[[State], str | None],
) -> Explored[State]:
    """Explore all reachable states, until one is bad.

    Args:
        first: The initial state.
        steps_of: Returns the possible steps in a state: their names, and the states after them.
        problem_in: Returns the violation in a state, or None.
    """
    before: dict[State, tuple[State, str] | None] = {first: None}
    queue = deque([first])
    steps = 0
    while queue:
        state = queue.popleft()
        problem = problem_in(state)
        if problem is not None:
            return Explored(len(before), steps, problem, _trace(before, state))
        for name, after in steps_of(state):
            steps += 1
            if after not in before:
                before[after] = (state, name)
                queue.append(after)
    return Explored(len(before), steps)


def _trace(before: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    names = []
    origin = before[state]
    while origin is not None:
        names.append(origin[1])
        origin = before[origin[0]]
    return tuple(reversed(names))
