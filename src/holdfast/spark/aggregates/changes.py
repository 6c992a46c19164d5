"""Aggregates that differ from those of the last run: renamed, added or dropped.

The metadata of each stored column has the aggregate that it belongs to. So a restart compares aggregates, not their
columns.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import pyarrow as pa

from holdfast.backends.keyed import KeyedStateBackend, TableSpec
from holdfast.backends.serializers import IncompatibleTypeError, change_of
from holdfast.common import json_decoder
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.aggregates.functions import Aggregate

_AGGREGATE = b"holdfast.aggregate"

_read_note = json_decoder(tuple[str, str]).decode


ANOTHER_UID = (
    "give the operator another uid, and set spark.holdfast.checkpoint.allow-non-restored-state to true to drop the "
    "state of the old uid"
)
"""The end of messages about state that an operator can't use."""


@dataclass(frozen=True, slots=True)
class AggregateChanges:
    """Declared differences of an operator's aggregates from the stored ones. Applied changes have no further effect.

    Attributes:
        renamed: The stored names of aggregates, by their present names.
        added: Names of aggregates that start without earlier rows.
        dropped: Names of stored aggregates to delete.
    """

    renamed: Mapping[str, str]
    added: Collection[str]
    dropped: Collection[str]

    @classmethod
    def of(
        cls,
        aggregates: Mapping[str, Aggregate],
        renamed: Mapping[str, str] | None,
        added: Collection[str],
        dropped: Collection[str],
    ) -> Self:
        """Return the changes that a user declares. Raises `InvalidRequestError` if they contradict the aggregates."""
        changes = cls(renamed or {}, added, dropped)
        changes._check(aggregates)
        return changes

    def column_changes(
        self, stored: TableSpec | None, aggregates: Mapping[str, Aggregate], wanted: pa.StructType
    ) -> dict[str, Any]:
        """Return `renamed` and `dropped` for the descriptor of the state, which are about columns.

        `wanted` is the struct of the columns. Raises `StateMigrationError` if a stored aggregate is missing or differs,
        or an aggregate is new, without a declared change.
        """
        before = _stored_aggregates(stored)
        if stored is None or not before:
            return {}
        sources = {name: self._source(name, before) for name in aggregates}
        gone = [name for name in before if name not in {*sources.values(), *self.dropped}]
        new = [
            name
            for name, source in sources.items()
            if source not in before and name not in self.added
        ]
        if gone or new:
            raise StateMigrationError(_difference(gone, new))
        columns: dict[str, str] = {}
        for name, source in sources.items():
            if source not in before:
                continue
            call, names = before[source]
            aggregate = aggregates[name]
            if call != str(aggregate):
                raise StateMigrationError(
                    f"aggregate {name!r} is stored as {call}, and is {aggregate} now; give the new one another name, "
                    f"with added=[that name] and dropped=[{source!r}]"
                )
            now = list(aggregate.accumulators(name))
            for old, column in zip(names, now, strict=True):
                _check_type(name, call, stored.values.field(old).type, wanted.field(column).type)
            columns |= dict(zip(now, names, strict=True))
        lost = [column for name in self.dropped for column in before.get(name, ("", []))[1]]
        renamed = {column: old for column, old in columns.items() if column != old}
        return {"renamed": renamed, "dropped": lost}

    def _check(self, aggregates: Mapping[str, Aggregate]) -> None:
        """Refuse changes that contradict the aggregates. Raises `InvalidRequestError`."""
        if not isinstance(self.renamed, Mapping):
            message = f"renamed must map new names to stored names, such as {{'orders': 'n'}}, got {self.renamed!r}"
            raise InvalidRequestError(message)
        for word, names in (("added", self.added), ("dropped", self.dropped)):
            if isinstance(names, str) or not isinstance(names, Collection):
                message = f"{word} must be a list of names of aggregates, got {names!r}"
                raise InvalidRequestError(message)
        unknown = sorted({*self.renamed, *self.added} - aggregates.keys())
        if unknown:
            message = f"renamed and added name {unknown}, but the aggregates are {[*aggregates]}"
            raise InvalidRequestError(message)
        both = sorted({*self.renamed} & {*self.added})
        if both:
            raise InvalidRequestError(f"aggregates {both} can't be both renamed and added")
        if len({*self.renamed.values()}) < len(self.renamed):
            raise InvalidRequestError(
                f"two aggregates can't have the same stored name, got renamed={self.renamed!r}"
            )
        kept = sorted({*self.renamed.values(), *self.dropped} & aggregates.keys())
        if kept:
            raise InvalidRequestError(
                f"stored aggregates {kept} are renamed or dropped, but aggregates of these names are requested; "
                "give these other names"
            )

    def _source(self, name: str, before: Collection[str]) -> str:
        """Return the stored name of an aggregate; its own name if it is new."""
        source = self.renamed.get(name, name)
        if source == name or source not in before:
            return name
        if name in before:
            message = f"aggregate {name!r} is renamed from {source!r}, but both are stored; drop one of them"
            raise StateMigrationError(message)
        return source


def check_own_states(store: KeyedStateBackend, own: Collection[str]) -> None:
    """Refuse an operator whose uid has other states than its own. Raises `StateMigrationError`."""
    others = sorted(store.state_names().difference(own))
    if others:
        raise StateMigrationError(
            f"states {others} are stored under the uid of this operator, which uses {[*own]}: the uid belonged to another "
            f"operator; {ANOTHER_UID}"
        )


def aggregate_field(column: str, type: pa.DataType, name: str, aggregate: Aggregate) -> pa.Field:
    """Return a column of the state, with its aggregate as metadata."""
    note = msgspec.json.encode((name, str(aggregate)))
    return pa.field(column, type, metadata={_AGGREGATE: note})


def _stored_aggregates(stored: TableSpec | None) -> dict[str, tuple[str, list[str]]]:
    """Return the call and the columns of each stored aggregate, by its name."""
    aggregates: dict[str, tuple[str, list[str]]] = {}
    for column in [] if stored is None else stored.values:
        note = (column.metadata or {}).get(_AGGREGATE)
        if note is not None:
            name, call = _read_note(note)
            aggregates.setdefault(name, (call, []))[1].append(column.name)
    return aggregates


def _difference(gone: list[str], new: list[str]) -> str:
    """Describe differences from the stored aggregates, with the arguments that declare them."""
    facts = []
    ways = []
    if gone and new:
        ways.append(f"renamed={{{new[0]!r}: {gone[0]!r}}} for a new name of the same aggregate")
    if gone:
        facts.append(f"aggregates {gone} are stored, but not requested")
        ways.append(f"dropped={gone} to delete the stored values")
    if new:
        facts.append(f"aggregates {new} are requested, but not stored")
        ways.append(f"added={new} to start without earlier rows")
    return f"{', and '.join(facts)}; pass agg {', or '.join(ways)}"


def _check_type(name: str, call: str, stored: pa.DataType, wanted: pa.DataType) -> None:
    try:
        change_of(stored, wanted)
    except IncompatibleTypeError:
        raise StateMigrationError(
            f"aggregate {name!r}, {call}, is stored as {stored}, and would be {wanted} now, which can't hold all stored "
            "values; cast the column to its former type"
        ) from None
