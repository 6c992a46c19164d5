"""Comparisons of values: their number, failures, and smaller cases that fail in the same way."""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from holdfast.errors import CheckpointError

Case = TypeVar("Case")

_MAX_TEXT = 1_500


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference.

    Attributes:
        kind: The difference without its values; problems of one kind are considered one fault.
        text: The expected value and the actual one.
    """

    kind: str
    text: str


@dataclass(slots=True)
class Comparisons:
    """The comparisons of one case.

    Attributes:
        count: Number of compared values.
        problems: The differences.
    """

    count: int = 0
    problems: list[Problem] = field(default_factory=list)

    def check(self, holds: object, kind: str, *shown: object) -> None:
        """Count a comparison; if it does not hold, add a problem that shows these values."""
        self.count += 1
        if not holds:
            text = f"{kind}: {', '.join(str(each) for each in shown)}"
            self.problems.append(Problem(kind, text[:_MAX_TEXT]))

    def add_error(self, label: str, error: BaseException) -> None:
        """Add an error that should not have been raised."""
        self.count += 1
        place = traceback.extract_tb(error.__traceback__)[-1]
        file = place.filename.rpartition("/")[2]
        kind = f"{label}: {type(error).__name__} in {file}:{place.name}"
        self.problems.append(Problem(kind, f"{kind}: {str(error)[:700]}"))


def is_clear(error: BaseException) -> bool:
    """Return whether Holdfast raised an error for a mistake that a user can correct."""
    return isinstance(error, CheckpointError) and isinstance(error, ValueError)


@dataclass(slots=True)
class Tally(Generic[Case]):
    """The outcome of many cases.

    Attributes:
        run: Runs a case.
        smaller: Yields cases with fewer parts.
        max_reductions: Maximum number of smaller cases that are tried for a failing one.
        cases: Number of cases.
        comparisons: Number of compared values.
        descriptions: A description of the first case with a problem, by the kind of problem.
        times: Number of cases with a problem, by the kind of problem.
    """

    run: Callable[[Case], Comparisons]
    smaller: Callable[[Case], Iterator[Case]]
    max_reductions: int = 150
    cases: int = 0
    comparisons: int = 0
    descriptions: dict[str, str] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, case: Case) -> None:
        """Run a case; reduce it if it has a problem of a new kind."""
        compared = self._compare(case)
        self.cases += 1
        self.comparisons += compared.count
        for kind in {problem.kind for problem in compared.problems}:
            self.times[kind] += 1
            if kind not in self.descriptions:
                self.descriptions[kind] = self._describe(name, case, kind)

    def _compare(self, case: Case) -> Comparisons:
        try:
            return self.run(case)
        except Exception as error:  # noqa: BLE001  # each error is a finding
            compared = Comparisons()
            compared.add_error("a case ended", error)
            return compared

    def _describe(self, name: str, case: Case, kind: str) -> str:
        reduced, problem = self._reduce(case, kind)
        return f"{name}: {problem.text}\n{reduced}"

    def _reduce(self, case: Case, kind: str) -> tuple[Case, Problem]:
        """Remove parts of a case as long as the problem remains."""
        problem = self._problem(case, kind) or Problem(kind, f"{kind} (not again)")
        runs = 0
        is_smaller = True
        while is_smaller and runs < self.max_reductions:
            is_smaller = False
            for candidate in self.smaller(case):
                runs += 1
                same = self._problem(candidate, kind)
                if same is not None:
                    case, problem, is_smaller = candidate, same, True
                    break
                if runs >= self.max_reductions:
                    break
        return case, problem

    def _problem(self, case: Case, kind: str) -> Problem | None:
        problems = self._compare(case).problems
        return next((problem for problem in problems if problem.kind == kind), None)


def without_each(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the items without one half, then without the other, then without each one."""
    if len(items) > 3:
        yield items[len(items) // 2 :]
        yield items[: len(items) // 2]
    for index in range(len(items)):
        yield items[:index] + items[index + 1 :]


def without_parts(case: Case, name: str) -> Iterator[Case]:
    """Yield the case with fewer items in one of its tuples."""
    for items in without_each(getattr(case, name)):
        yield replace(case, **{name: items})  # type: ignore[type-var]  # a dataclass


def without_entries(case: Case, name: str) -> Iterator[Case]:
    """Yield the case with fewer entries, but at least one, in one of its mappings."""
    entries = tuple(getattr(case, name).items())
    if len(entries) > 1:
        for fewer in without_each(entries):
            yield replace(case, **{name: dict(fewer)})  # type: ignore[type-var]  # a dataclass


def with_smaller_parts(
    case: Case, name: str, smaller: Callable[[Any], Iterator[Any]]
) -> Iterator[Case]:
    """Yield the case with a smaller item in one of its tuples."""
    items = getattr(case, name)
    for index, item in enumerate(items):
        for less in smaller(item):
            if less != item:
                changed = (*items[:index], less, *items[index + 1 :])
                yield replace(case, **{name: changed})  # type: ignore[type-var]  # a dataclass
