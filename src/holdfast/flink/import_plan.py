"""The plan of an import: the new states of a Flink savepoint's states, and losses. Reads descriptions and broadcast state."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.backends.keys import MAX_PARALLELISM
from holdfast.errors import InvalidRequestError, UnreadableStateError
from holdfast.flink.kafka_offsets import SOURCES
from holdfast.flink.metadata import operator_id
from holdfast.flink.savepoint import FlinkSavepoint
from holdfast.flink.states import TIMERS

Place = tuple[str, str]
"""An operator and its state."""

_OF_FUNCTIONS = "user-timers"
_TIMER = "keyed timer"
_OF_WINDOWS = ("window-contents", "merging-window-set")


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedState:
    """A state that is imported.

    Attributes:
        operator: Flink's operator, by its name in `operators`.
        source: Operator and state as named by the caller.
        target: New operator and state; for timers, their domain instead of a state.
        kind: Flink's type, such as `keyed map`.
        types: Readable types of keys and values.
        has_ttl: Whether its values have a time to live.
        is_checked: Whether its keys can be checked against their key groups.
    """

    operator: str
    source: Place
    target: Place
    kind: str
    types: str
    has_ttl: bool
    is_checked: bool

    @property
    def is_keyed(self) -> bool:
        return self.kind.startswith("keyed")

    @property
    def domain(self) -> str:
        """Domain of timers, `event` or `processing`; empty for other states."""
        return _domain_and_service(self.source[1])[0] if self.kind == _TIMER else ""

    @property
    def description(self) -> str:
        """Readable description of its source and target."""
        label = f"timers of {self.domain} time" if self.domain else f"{self.kind}, {self.types}"
        unchecked = "" if self.is_checked or not self.is_keyed else "; keys that can't be checked"
        source = self.source[0] if self.domain else "/".join(self.source)
        target = self.target[0] if self.domain else "/".join(self.target)
        return f"{source} as {target}: {label}{unchecked}"


class ImportPlan:
    """The new states of a savepoint, and losses.

    Args:
        savepoint: The savepoint.
        states: New states by Flink's states; None for all except those of windows and sources.
        timers: Whether to import timers of functions with their operator's keyed states.

    Attributes:
        moved: Imported states.
        lost: Readable lines of data that is not imported.
        refused: Losses because data can't be read, or is not in any state.
        starting_offsets: Spark's `startingOffsets` by operators of Kafka sources.

    Raises:
        InvalidRequestError: A named state does not exist, or two have the same target.
    """

    def __init__(
        self, savepoint: FlinkSavepoint, states: Mapping[Place, Place] | None, *, timers: bool
    ) -> None:
        self._savepoint = savepoint
        self._timers = timers
        self._operators = {row["operator"]: row for row in savepoint.operators().to_pylist()}
        self._states = savepoint.states().to_pylist()
        self.moved: list[MovedState] = []
        self.lost: list[str] = []
        self.refused = [
            f"{row['in_flight_bytes']} bytes of rows are in flight at operator {label} and not in any state; take a "
            "savepoint, or an aligned checkpoint"
            for label, row in self._operators.items()
            if row["in_flight_bytes"]
        ]
        self.starting_offsets: dict[str, str] = {}
        if states is None:
            self._take_all()
        else:
            self._take_given(states)
        targets = [each.target for each in self.moved]
        twice = sorted({"/".join(target) for target in targets if targets.count(target) > 1})
        if twice:
            raise InvalidRequestError(f"several Flink states have the target {', '.join(twice)}")
        self.lost += [
            f"what subtasks have otherwise in broadcast state {'/'.join(each.source)}: the first subtask's copy is imported"
            for each in self.moved
            if each.kind == "broadcast" and self._has_unequal_copies(each)
        ]

    def _take_all(self) -> None:
        """Import all states of operators with a known uid, except Flink's internal ones."""
        unnamed = set()
        for row in self._states:
            operator, state = row["operator"], row["state"]
            if operator == self._operators[operator]["id"]:
                unnamed.add(operator)
            elif not self._take_other(row):
                self._take(row, (operator, state), (operator, state))
        if unnamed:
            self.lost.append(
                f"states of {len(unnamed)} operators with an unknown uid ({', '.join(sorted(unnamed))}): specify their "
                "uids, or their states"
            )

    def _take_given(self, states: Mapping[Place, Place]) -> None:
        """Import the given states; timers are imported with the other states of their operator."""
        left = dict(states)
        targets: dict[str, set[str]] = {}
        others: dict[str, list[str]] = {}
        for row in self._states:
            label = row["operator"]
            places = [place for place in left if self._is(place, row)]
            for place in places:
                target = left.pop(place)
                _check_readable(place, row)
                if not _is_of_timers(row):
                    self._take(row, place, target)
                if row["kind"].startswith("keyed"):
                    targets.setdefault(label, set()).add(target[0])
            if not places and row["state"] and not _is_of_timers(row):
                self._take_offsets(row)
                others.setdefault(label, []).append(row["state"])
        if left:
            there = ", ".join(f"{row['operator']}/{row['state']}" for row in self._states)
            message = f"unknown states {['/'.join(place) for place in left]}; available: {there}"
            raise InvalidRequestError(message)
        named = {each.operator for each in self.moved}
        self.lost += [
            f"states of operator {label} that were not requested: {', '.join(names)}"
            for label, names in others.items()
            if label in named
        ]
        if others.keys() - named:
            self.lost.append(f"all states of {', '.join(sorted(others.keys() - named))}")
        for row in filter(_is_of_timers, self._states):
            for uid in sorted(targets.get(row["operator"], ())):
                self._take_timers(row, uid)

    def _is(self, place: Place, row: Mapping[str, Any]) -> bool:
        operator, state = place
        known = self._operators[row["operator"]]
        names = {row["operator"], known["id"], known["name"]}
        return state == row["state"] and (operator in names or operator_id(operator) == known["id"])

    def _take_other(self, row: Mapping[str, Any]) -> bool:
        """Handle internal and unreadable states and timers; returns whether the state was one of these."""
        operator, state = row["operator"], row["state"]
        if row["failure"]:
            self.refused.append(
                f"state {operator}/{state or row['kind']} can't be read: {row['failure']}"
            )
        elif state in SOURCES:
            self._take_offsets(row)
        elif _is_of_timers(row):
            self._take_timers(row, operator)
        elif row["value"] == "null":
            self.refused.append(f"state {operator}/{state} has values without a type")
        elif row["namespace"] is not None or state in _OF_WINDOWS:
            self.lost.append(
                f"window state {operator}/{state}, whose logic is in Flink; name it to import it with its windows"
            )
        else:
            return False
        return True

    def _take_timers(self, row: Mapping[str, Any], uid: str) -> None:
        operator = row["operator"]
        domain, service = _domain_and_service(row["state"])
        if service != _OF_FUNCTIONS or row["namespace"] is not None:
            self.lost.append(f"timers {service!r} of {domain} time of operator {operator}")
        elif not self._timers:
            self.lost.append(
                f"timers of {domain} time of operator {operator}, which were not requested"
            )
        else:
            self._take(row, (operator, row["state"]), (uid, f"timers of {domain} time"))

    def _take_offsets(self, row: Mapping[str, Any]) -> None:
        """Record the next offsets of a Kafka source, or the reason why they are unknown."""
        if row["state"] not in SOURCES or row["failure"]:
            return
        operator = row["operator"]
        try:
            self.starting_offsets[operator] = self._savepoint.source_offsets(operator)
        except InvalidRequestError as error:
            self.lost.append(f"what the source {operator} has read: {error.args[0]}")

    def _take(self, row: Mapping[str, Any], source: Place, target: Place) -> None:
        self.moved.append(
            MovedState(
                operator=row["operator"],
                source=source,
                target=target,
                kind=row["kind"],
                types=" to ".join(row[part] for part in ("key", "value") if row[part] is not None),
                has_ttl=row["has_ttl"],
                is_checked=row["has_known_hash"],
            )
        )

    def _has_unequal_copies(self, state: MovedState) -> bool:
        """Return whether the subtasks' copies of a broadcast state differ; unreadable ones are reported when they are read."""
        subtasks = range(min(self._operators[state.operator]["parallelism"], MAX_PARALLELISM))
        with suppress(UnreadableStateError):
            return len({copy for copy in map(partial(self._copy, state), subtasks) if copy}) > 1
        return False

    def _copy(self, state: MovedState, subtask: int) -> tuple[str, ...]:
        """Return a subtask's copy of a broadcast state, sorted for comparison."""
        rows = self._savepoint.read_state(*state.source, kind=state.kind, subtask=subtask)
        return tuple(sorted(map(repr, rows.to_pylist())))


def _check_readable(place: Place, row: Mapping[str, Any]) -> None:
    if row["failure"]:
        raise InvalidRequestError(f"state {'/'.join(place)} can't be read: {row['failure']}")


def _is_of_timers(row: Mapping[str, Any]) -> bool:
    return bool(row["kind"] == _TIMER)


def _domain_and_service(state: str) -> tuple[str, str]:
    """The domain of time and the service of timers, by the name of their state."""
    domain, _, service = state.removeprefix(TIMERS).partition("_")
    return domain, service
