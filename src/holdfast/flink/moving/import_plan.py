"""Which states of a savepoint of Flink become which of ours, and what is lost. Reads descriptions, and broadcast state."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from holdfast.backends.keys import MAX_PARALLELISM
from holdfast.errors import InvalidRequestError, UnreadableStateError
from holdfast.flink.kafka_offsets import SOURCES
from holdfast.flink.operator_ids import operator_id
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
        operator: The operator of Flink, as `operators` names it.
        source: Operator and state as whoever imports names them.
        target: Operator and state that it becomes; of timers their domain stands for the state.
        kind: Flink's, such as `keyed map`.
        types: The types of keys and values, for people.
        has_ttl: Whether its values have a time to live.
        is_checked: Whether the key groups of its keys can be compared with Flink's hash.
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
        """Whether it is kept by key."""
        return self.kind.startswith("keyed")

    @property
    def domain(self) -> str:
        """The domain of timers, `event` or `processing`; empty for other states."""
        return _domain_and_service(self.source[1])[0] if self.kind == _TIMER else ""

    @property
    def description(self) -> str:
        """Where it comes from and what it becomes, for people."""
        what = f"timers of {self.domain} time" if self.domain else f"{self.kind}, {self.types}"
        unchecked = "" if self.is_checked or not self.is_keyed else "; keys that can't be checked"
        source = self.source[0] if self.domain else "/".join(self.source)
        target = self.target[0] if self.domain else "/".join(self.target)
        return f"{source} as {target}: {what}{unchecked}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlan:
    """What becomes of the states of a savepoint.

    Attributes:
        moved: The states that are imported.
        lost: What is not, for people.
        refused: What is lost because it can't be read, or is in no state.
        starting_offsets: By the operators of sources that read Kafka, Spark's `startingOffsets`.
    """

    moved: tuple[MovedState, ...]
    lost: tuple[str, ...]
    refused: tuple[str, ...]
    starting_offsets: Mapping[str, str]

    @classmethod
    def of(
        cls, savepoint: FlinkSavepoint, states: Mapping[Place, Place] | None, *, timers: bool
    ) -> Self:
        """Look at a savepoint.

        Args:
            savepoint: The savepoint.
            states: What becomes of which states; None for all that are no window's or source's.
            timers: Whether timers of functions come along with their operator's keyed states.

        Raises:
            InvalidRequestError: States are named that don't exist, or two become the same.
        """
        sorting = _Sorting(savepoint)
        if states is None:
            sorting.take_all(timers=timers)
        else:
            sorting.take(states, timers=timers)
        targets = [each.target for each in sorting.moved]
        twice = sorted({"/".join(target) for target in targets if targets.count(target) > 1})
        if twice:
            raise InvalidRequestError(f"several states of Flink are to become {', '.join(twice)}")
        return cls(
            moved=tuple(sorting.moved),
            lost=(*sorting.lost, *_unequal_copies(savepoint, sorting)),
            refused=tuple(sorting.refused),
            starting_offsets=sorting.offsets,
        )


class _Sorting:
    """Sorts states into what is imported and what is lost."""

    def __init__(self, savepoint: FlinkSavepoint) -> None:
        self._savepoint = savepoint
        self.operators = {row["operator"]: row for row in savepoint.operators().to_pylist()}
        self._states = savepoint.states().to_pylist()
        self.moved: list[MovedState] = []
        self.lost: list[str] = []
        self.refused = [
            f"{row['in_flight_bytes']} bytes of rows are in flight at operator {label}, which are in no state; take a "
            "savepoint, or an aligned checkpoint"
            for label, row in self.operators.items()
            if row["in_flight_bytes"]
        ]
        self.offsets: dict[str, str] = {}

    def take_all(self, *, timers: bool) -> None:
        """All states of operators whose uid is known, but those that are Flink's own."""
        unnamed = set()
        for row in self._states:
            operator, state = row["operator"], row["state"]
            if operator == self.operators[operator]["id"]:
                unnamed.add(operator)
            elif not self._take_other(row, timers=timers):
                self._take(row, operator, (operator, state), (operator, state))
        if unnamed:
            self.lost.append(
                f"states of {len(unnamed)} operators whose uid isn't known ({', '.join(sorted(unnamed))}): name their "
                "uids, or their states"
            )

    def take(self, states: Mapping[Place, Place], *, timers: bool) -> None:
        """These states. Raises `InvalidRequestError`."""
        left = dict(states)
        targets: dict[str, set[str]] = {}
        others: dict[str, list[str]] = {}
        for row in self._states:
            label = row["operator"]
            places = [place for place in left if self._is(place, row)]
            for place in places:
                target = left.pop(place)
                self._take_named(row, place, target)
                if row["kind"].startswith("keyed"):
                    targets.setdefault(label, set()).add(target[0])
            if not places and row["state"] and not self._is_of_timers(row):
                self._take_offsets(row)
                others.setdefault(label, []).append(row["state"])
        if left:
            there = ", ".join(f"{row['operator']}/{row['state']}" for row in self._states)
            message = (
                f"there are no states {['/'.join(place) for place in left]}; there are {there}"
            )
            raise InvalidRequestError(message)
        named = {each.operator for each in self.moved}
        self.lost += [
            f"states of operator {label} that are not asked for: {', '.join(names)}"
            for label, names in others.items()
            if label in named
        ]
        if others.keys() - named:
            self.lost.append(f"all states of {', '.join(sorted(others.keys() - named))}")
        for row in filter(self._is_of_timers, self._states):
            for uid in sorted(targets.get(row["operator"], ())):
                self._take_timers(row, uid, timers=timers)

    def _take_named(self, row: Mapping[str, Any], place: Place, target: Place) -> None:
        """Take a state; timers come along with the others of their operator. Raises `InvalidRequestError`."""
        if row["failure"]:
            message = f"state {'/'.join(place)} can't be read: {row['failure']}"
            raise InvalidRequestError(message)
        if not self._is_of_timers(row):
            self._take(row, row["operator"], place, target)

    def _is(self, place: Place, row: Mapping[str, Any]) -> bool:
        """Whether a state is the one that is named so."""
        operator, state = place
        known = self.operators[row["operator"]]
        names = {row["operator"], known["id"], known["name"]}
        return state == row["state"] and (operator in names or operator_id(operator) == known["id"])

    def _take_other(self, row: Mapping[str, Any], *, timers: bool) -> bool:
        """Sort what is Flink's own, can't be read, or is of timers; says whether it was that."""
        operator, state = row["operator"], row["state"]
        if row["failure"]:
            self.refused.append(
                f"state {operator}/{state or row['kind']} can't be read: {row['failure']}"
            )
        elif state in SOURCES:
            self._take_offsets(row)
        elif self._is_of_timers(row):
            self._take_timers(row, operator, timers=timers)
        elif row["value"] == "null":
            self.refused.append(f"state {operator}/{state} has values of no type")
        elif row["namespace"] is not None or state in _OF_WINDOWS:
            self.lost.append(
                f"state {operator}/{state} of windows, whose logic is Flink's; name it to have it with its windows"
            )
        else:
            return False
        return True

    def _take_timers(self, row: Mapping[str, Any], uid: str, *, timers: bool) -> None:
        operator = row["operator"]
        domain, service = _domain_and_service(row["state"])
        if service != _OF_FUNCTIONS or row["namespace"] is not None:
            self.lost.append(f"timers {service!r} of {domain} time of operator {operator}")
        elif not timers:
            self.lost.append(
                f"timers of {domain} time of operator {operator}, which are not asked for"
            )
        else:
            self._take(row, operator, (operator, row["state"]), (uid, f"timers of {domain} time"))

    def _take_offsets(self, row: Mapping[str, Any]) -> None:
        """Note where a source of Kafka goes on, or why that isn't known."""
        if row["state"] not in SOURCES or row["failure"]:
            return
        operator = row["operator"]
        try:
            self.offsets[operator] = self._savepoint.source_offsets(operator)
        except InvalidRequestError as error:
            self.lost.append(f"what the source {operator} has read: {error.args[0]}")

    def _take(self, row: Mapping[str, Any], operator: str, source: Place, target: Place) -> None:
        self.moved.append(
            MovedState(
                operator=operator,
                source=source,
                target=target,
                kind=row["kind"],
                types=" to ".join(row[part] for part in ("key", "value") if row[part] is not None),
                has_ttl=row["has_ttl"],
                is_checked=row["has_known_hash"],
            )
        )

    @staticmethod
    def _is_of_timers(row: Mapping[str, Any]) -> bool:
        return bool(row["kind"] == _TIMER)


def _unequal_copies(savepoint: FlinkSavepoint, sorting: _Sorting) -> Iterator[str]:
    """What is lost where subtasks have different copies of a broadcast state."""
    for each in sorting.moved:
        if each.kind != "broadcast":
            continue
        subtasks = range(min(sorting.operators[each.operator]["parallelism"], MAX_PARALLELISM))
        try:
            copies = [_copy(savepoint, each.source, subtask) for subtask in subtasks]
        except UnreadableStateError:
            continue  # whoever reads the state says so
        if len({copy for copy in copies if copy}) > 1:
            yield (
                f"what subtasks have otherwise in broadcast state {'/'.join(each.source)}: the first subtask's copy is imported"
            )


def _copy(savepoint: FlinkSavepoint, source: Place, subtask: int) -> tuple[str, ...]:
    """A subtask's copy of a broadcast state, in an order of its own."""
    operator, state = source
    rows = savepoint.read_state(operator, state, kind="broadcast", subtask=subtask)
    return tuple(sorted(map(repr, rows.to_pylist())))


def _domain_and_service(state: str) -> tuple[str, str]:
    """The domain of time and the service of timers, by the name of their state."""
    domain, _, service = state.removeprefix(TIMERS).partition("_")
    return domain, service
