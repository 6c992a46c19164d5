"""Aggregates that are not those of the last run: renamed, added or dropped.

Each stored column says which aggregate it belongs to, in its metadata. So a restart compares aggregates, not the
columns that they are stored in.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypedDict

import msgspec
import pyarrow as pa

from holdfast.backends.keyed import KeyedStateBackend, TableSpec
from holdfast.backends.serializers import IncompatibleTypeError, change_of
from holdfast.common import json_decoder
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.aggregates.descriptions import Aggregate

_AGGREGATE = b"holdfast.aggregate"

_read_note = json_decoder(tuple[str, str]).decode


ANOTHER_UID = (
    "give the operator another uid, and set spark.holdfast.checkpoint.allow-non-restored-state to true to drop the "
    "state of the old uid"
)
"""The way out if the state of an operator is of no use to it."""


class ChangeOptions(TypedDict, total=False):
    """How aggregates differ from the stored ones, as `AggregateChanges` describes it."""

    renamed: Mapping[str, str] | None
    added: Collection[str]
    dropped: Collection[str]


@dataclass(frozen=True, slots=True)
class AggregateChanges:
    """How the aggregates of an operator differ from the stored ones. Changes that were made have no effect any more.

    Attributes:
        renamed: The stored names of aggregates, by their present names.
        added: Names of aggregates that begin without the rows so far.
        dropped: Names of stored aggregates whose values are to be lost.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    added: Collection[str] = ()
    dropped: Collection[str] = ()

    @classmethod
    def of(cls, aggregates: Mapping[str, Aggregate], options: ChangeOptions) -> Self:
        """The changes that users give with their aggregates.

        Raises:
            InvalidRequestError: They contradict the aggregates.
            TypeError: There is no such option.
        """
        unknown = options.keys() - ChangeOptions.__annotations__.keys()
        if unknown:
            raise TypeError(
                f"there are no options {sorted(unknown)}; there are {[*ChangeOptions.__annotations__]}"
            )
        renamed, added = options.get("renamed") or {}, options.get("added", ())
        changes = cls(renamed, added, options.get("dropped", ()))
        changes._check(aggregates)
        return changes

    def of_columns(
        self, stored: TableSpec | None, aggregates: Mapping[str, Aggregate], wanted: pa.StructType
    ) -> dict[str, Any]:
        """What the descriptor of the state says of its columns: `renamed` and `dropped`.

        Args:
            stored: The state as it is stored; None if it is new.
            aggregates: The present aggregates by name.
            wanted: The struct of their columns.

        Raises:
            StateMigrationError: A stored aggregate is missing, or not what it was, or an aggregate is new, without
                a word of that here.
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
            raise StateMigrationError(_missing(gone, new))
        columns: dict[str, str] = {}
        for name, source in sources.items():
            if source not in before:
                continue
            shown, names = before[source]
            aggregate = aggregates[name]
            if shown != str(aggregate):
                message = (
                    f"aggregate {name!r} is stored as {shown}, and is {aggregate} now; give the new one another name, "
                    f"with added=[that name] and dropped=[{source!r}]"
                )
                raise StateMigrationError(message)
            now = list(aggregate.accumulators(name))
            for old, column in zip(names, now, strict=True):
                _check_type(name, shown, stored.values.field(old).type, wanted.field(column).type)
            columns |= dict(zip(now, names, strict=True))
        lost = [column for name in self.dropped for column in before.get(name, ("", []))[1]]
        renamed = {column: old for column, old in columns.items() if column != old}
        return {"renamed": renamed, "dropped": lost}

    def _check(self, aggregates: Mapping[str, Aggregate]) -> None:
        """Refuse changes that contradict the aggregates. Raises `InvalidRequestError`."""
        if not isinstance(self.renamed, Mapping):
            message = f"renamed is {self.renamed!r}; it must map new names to stored names, such as {{'orders': 'n'}}"
            raise InvalidRequestError(message)
        for word, names in (("added", self.added), ("dropped", self.dropped)):
            if isinstance(names, str) or not isinstance(names, Collection):
                message = f"{word} is {names!r}; it must be a list of names of aggregates"
                raise InvalidRequestError(message)
        unknown = sorted({*self.renamed, *self.added} - aggregates.keys())
        if unknown:
            message = f"renamed and added name {unknown}, but the aggregates are {[*aggregates]}"
            raise InvalidRequestError(message)
        both = sorted({*self.renamed} & {*self.added})
        if both:
            raise InvalidRequestError(f"aggregates {both} can't be both renamed and added")
        if len({*self.renamed.values()}) < len(self.renamed):
            message = f"renamed is {self.renamed!r}; no two aggregates can have had one name"
            raise InvalidRequestError(message)
        kept = sorted({*self.renamed.values(), *self.dropped} & aggregates.keys())
        if kept:
            message = (
                f"stored aggregates {kept} are said to be renamed or dropped, but aggregates of these names are asked "
                "for; give these other names"
            )
            raise InvalidRequestError(message)

    def _source(self, name: str, before: Collection[str]) -> str:
        """The stored name of an aggregate; its own name if it is new."""
        source = self.renamed.get(name, name)
        if source == name or source not in before:
            return name
        if name in before:
            message = f"aggregate {name!r} is said to be {source!r} by another name, and both are stored; drop one of them"
            raise StateMigrationError(message)
        return source


def check_own_states(store: KeyedStateBackend, own: Collection[str]) -> None:
    """Refuse an operator whose uid has states of another operator. Raises `StateMigrationError`.

    Args:
        store: The states of the operator.
        own: Names of the states that it uses.
    """
    others = sorted(store.state_names().difference(own))
    if others:
        message = (
            f"states {others} are stored under the uid of this operator, which uses {[*own]}: another operator had the "
            f"uid before; {ANOTHER_UID}"
        )
        raise StateMigrationError(message)


def described_field(column: str, type: pa.DataType, name: str, aggregate: Aggregate) -> pa.Field:
    """A column of the state, which says of which aggregate it is."""
    note = msgspec.json.encode((name, str(aggregate)))
    return pa.field(column, type, metadata={_AGGREGATE: note})


def _stored_aggregates(stored: TableSpec | None) -> dict[str, tuple[str, list[str]]]:
    """What each stored aggregate is, and its columns, by its name."""
    found: dict[str, tuple[str, list[str]]] = {}
    for column in [] if stored is None else stored.values:
        note = (column.metadata or {}).get(_AGGREGATE)
        if note is not None:
            name, shown = _read_note(note)
            found.setdefault(name, (shown, []))[1].append(column.name)
    return found


def _missing(gone: list[str], new: list[str]) -> str:
    what = []
    ways = []
    if gone and new:
        ways.append(f"renamed={{{new[0]!r}: {gone[0]!r}}} for a new name of the same aggregate")
    if gone:
        what.append(f"aggregates {gone} are stored, but not asked for")
        ways.append(f"dropped={gone} to lose the stored values")
    if new:
        what.append(f"aggregates {new} are asked for, but not stored")
        ways.append(f"added={new} to begin without the rows so far")
    return f"{', and '.join(what)}; give agg {', or '.join(ways)}"


def _check_type(name: str, shown: str, stored: pa.DataType, wanted: pa.DataType) -> None:
    try:
        change_of(stored, wanted)
    except IncompatibleTypeError:
        message = (
            f"aggregate {name!r}, {shown}, is stored as {stored}, and would be {wanted} now, which does not hold all of "
            "those; cast the column to the type that it had before"
        )
        raise StateMigrationError(message) from None
