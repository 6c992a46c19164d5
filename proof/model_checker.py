"""An exhaustive checker: every state that a system can come to, the nearest first."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True)
class Explored(Generic[State]):
    """What was seen.

    Attributes:
        states: Number of different states.
        steps: Number of steps between them.
        problem: What is wrong in the first bad state; None if there is none.
        trace: The steps that lead there, the fewest that there are.
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
    """Look at every state that can be reached, until one is bad.

    Args:
        first: Where the system begins.
        steps_of: What can happen in a state: names of steps, and the states behind them.
        problem_in: What is wrong in a state; None if nothing is.
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
    came = before[state]
    while came is not None:
        names.append(came[1])
        came = before[came[0]]
    return tuple(reversed(names))
