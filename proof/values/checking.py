"""Comparisons: how many were made, which failed, and a smaller case that fails in the same way."""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from holdfast.errors import CheckpointError

Case = TypeVar("Case")

_MAX_TEXT = 1_500


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference.

    Attributes:
        kind: What differs, without the values: problems of one kind are taken for one fault.
        text: What was expected, and what came instead.
    """

    kind: str
    text: str


@dataclass(slots=True)
class Comparisons:
    """The comparisons of one case.

    Attributes:
        count: How many values were compared.
        problems: What differed.
    """

    count: int = 0
    problems: list[Problem] = field(default_factory=list)

    def check(self, holds: object, kind: str, *shown: object) -> None:
        """Count a comparison; if it does not hold, note it with what is to be shown of it."""
        self.count += 1
        if not holds:
            text = f"{kind}: {', '.join(str(each) for each in shown)}"
            self.problems.append(Problem(kind, text[:_MAX_TEXT]))

    def unexpected(self, what: str, error: BaseException) -> None:
        """Note an error that should not have been raised."""
        self.count += 1
        place = traceback.extract_tb(error.__traceback__)[-1]
        file = place.filename.rpartition("/")[2]
        kind = f"{what}: {type(error).__name__} in {file}:{place.name}"
        self.problems.append(Problem(kind, f"{kind}: {str(error)[:700]}"))


def is_clear(error: BaseException) -> bool:
    """Whether an error is one that Holdfast raises for what a user can mend."""
    return isinstance(error, CheckpointError) and isinstance(error, ValueError)


@dataclass(slots=True)
class Tally(Generic[Case]):
    """The outcome of many cases.

    Attributes:
        run: Runs a case.
        smaller: Yields cases that have a little less.
        max_reductions: How many smaller cases are tried for a failing one.
        cases: How many cases were run.
        comparisons: How many values were compared.
        found: A description of the first case of each kind of problem.
        times: How many cases had each kind of problem.
    """

    run: Callable[[Case], Comparisons]
    smaller: Callable[[Case], Iterator[Case]]
    max_reductions: int = 150
    cases: int = 0
    comparisons: int = 0
    found: dict[str, str] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, case: Case) -> None:
        """Run a case; reduce it if it has a problem of a new kind."""
        compared = self._compared(case)
        self.cases += 1
        self.comparisons += compared.count
        for kind in {problem.kind for problem in compared.problems}:
            self.times[kind] += 1
            if kind not in self.found:
                self.found[kind] = self._described(name, case, kind)

    def _compared(self, case: Case) -> Comparisons:
        try:
            return self.run(case)
        except Exception as error:  # noqa: BLE001  # whatever comes is a finding
            compared = Comparisons()
            compared.unexpected("a case ended", error)
            return compared

    def _described(self, name: str, case: Case, kind: str) -> str:
        reduced, problem = self._reduced(case, kind)
        return f"{name}: {problem.text}\n{reduced}"

    def _reduced(self, case: Case, kind: str) -> tuple[Case, Problem]:
        """Leave out parts of a case as long as the problem stays."""
        problem = self._problem(case, kind) or Problem(kind, f"{kind} (not again)")
        runs = 0
        is_smaller = True
        while is_smaller and runs < self.max_reductions:
            is_smaller = False
            for candidate in self.smaller(case):
                runs += 1
                found = self._problem(candidate, kind)
                if found is not None:
                    case, problem, is_smaller = candidate, found, True
                    break
                if runs >= self.max_reductions:
                    break
        return case, problem

    def _problem(self, case: Case, kind: str) -> Problem | None:
        problems = self._compared(case).problems
        return next((problem for problem in problems if problem.kind == kind), None)


def without_each(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the items without one half, then without the other, then without each one."""
    if len(items) > 3:
        yield items[len(items) // 2 :]
        yield items[: len(items) // 2]
    for index in range(len(items)):
        yield items[:index] + items[index + 1 :]
