"""A map of each key, for many keys at once: entries lie each in a row of its own."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import Elements, run_starts
from holdfast.backends.keyed.columns import same_rows, take_arrow
from holdfast.backends.keyed.grouping import Positions
from holdfast.backends.keyed.keys import SUB_BITS, Keys
from holdfast.backends.keyed.states.state_rows import ValueRows, check_length, key_indices
from holdfast.backends.keyed.states.value_form import ValueForm
from holdfast.backends.keyed.table import Identities, Operation, TableRows

_U = np.uint64


@dataclass(frozen=True)
class MapEntries:
    """Entries of the maps of several keys.

    Attributes:
        indices: For each entry the index of its key, ascending.
        map_keys: The map key of each, as Arrow stores it.
        values: The value of each, as Arrow stores it.
    """

    indices: Positions
    map_keys: pa.Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.indices)


class MapColumns:
    """The maps of a state, by arrays. An entry is named by the index of its key in `keys`, and by its map key.

    Args:
        rows: The rows of the state, one for each entry.
        key_form: How map keys lie in them.
    """

    def __init__(self, rows: ValueRows, key_form: ValueForm) -> None:
        self.rows = rows
        self.key_form = key_form

    def get(self, keys: Keys, map_keys: Elements, indices: npt.ArrayLike | None = None) -> pa.Array:
        """The value of each entry; null where there is none.

        Args:
            keys: The keys whose maps are read.
            map_keys: The map key of each row.
            indices: The index of each row's key in `keys`; None if rows are those of the batch.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or a map key is of another type.
        """
        entries = self._entries(keys, indices, self.key_form.encoded(map_keys))
        self.rows.settle()
        _, values = self.rows.get(entries)
        return take_arrow(values, entries.codes)

    def put(
        self,
        keys: Keys,
        map_keys: Elements,
        values: Elements,
        indices: npt.ArrayLike | None = None,
    ) -> None:
        """Set the value of each entry; of several rows for an entry the last one counts.

        Args:
            keys: The keys whose maps are written.
            map_keys: The map key of each row.
            values: The value of each row.
            indices: The index of each row's key in `keys`; None if rows are those of the batch.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or a map key or value is null or of
                another type.
        """
        entries = self._entries(keys, indices, self.key_form.encoded(map_keys))
        array = self.rows.form.encoded(values)
        check_length(self.rows.name, len(array), len(entries.rows.order), "rows")
        self.rows.settle()
        self.rows.put(entries, take_arrow(array, entries.rows.lasts))

    def remove(self, keys: Keys, map_keys: Elements, indices: npt.ArrayLike | None = None) -> None:
        """Remove entries. Arguments and errors are those of `get`."""
        entries = self._entries(keys, indices, self.key_form.encoded(map_keys))
        self.rows.settle()
        self.rows.delete(entries)

    def items(self, keys: Keys) -> MapEntries:
        """All entries of the keys' maps, key by key.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state.
        """
        self.rows.begin(keys)
        return self.stored(keys)

    def clear(self, keys: Keys) -> None:
        """Remove all entries of the keys' maps. Raises what `items` does."""
        self.rows.begin(keys)
        self.remove_all(keys)

    def stored(self, keys: Keys) -> MapEntries:
        """All entries of the keys' maps that reads give. No time starts anew, as in Flink."""
        shows_expired = self.rows.shows_expired
        table_rows, chosen, indices = self._rows_of(keys, include_expired=shows_expired)
        columns = [take_arrow(column, chosen) for column in table_rows.values]
        map_keys = take_arrow(table_rows.identities.columns[-1], chosen)
        return MapEntries(indices, map_keys, self.rows.form.values_of(columns))

    def remove_all(self, keys: Keys) -> None:
        """Remove each entry of the keys' maps, as Flink does: a row for each.

        Those whose time is over are among them: they may be shown, or live on with a longer time.
        """
        table_rows, chosen, _ = self._rows_of(keys, include_expired=True)
        if len(chosen):
            ascending = np.sort(chosen)
            identities = Identities(
                table_rows.identities.sort_keys[ascending],
                tuple(take_arrow(column, ascending) for column in table_rows.identities.columns),
            )
            nothing = self.rows.form.nothing(len(ascending))
            self.rows.table.write(identities, nothing, Operation.DELETE)

    def store(
        self,
        keys: Keys,
        indices: Positions,
        map_keys: pa.Array,
        values: pa.Array,
        operations: npt.NDArray[np.uint8],
    ) -> None:
        """Put and remove distinct entries."""
        entries = keys.with_columns(indices, [map_keys], self.rows.hash_of)
        lasts = entries.rows.lasts
        self.rows.write(entries, take_arrow(values, lasts), operations[lasts])

    def _entries(self, keys: Keys, indices: npt.ArrayLike | None, map_keys: pa.Array) -> Keys:
        self.rows.check(keys)
        at = key_indices(self.rows.name, keys, indices)
        check_length(self.rows.name, len(map_keys), len(at), "rows")
        return keys.with_columns(at, [map_keys], self.rows.hash_of)

    def _rows_of(
        self, keys: Keys, *, include_expired: bool
    ) -> tuple[TableRows, Positions, Positions]:
        """Rows among which those of the keys are; which ones, key by key; and the index of each one's key."""
        prefixes = keys.sort_keys >> SUB_BITS
        first = prefixes[run_starts(prefixes)]
        rows = self.rows.table.rows_between(
            first << SUB_BITS, (first + _U(1)) << SUB_BITS, include_expired=include_expired
        )
        indices = np.full(len(rows), -1, np.int64)
        todo = np.arange(len(rows))
        row_prefixes = rows.identities.sort_keys >> SUB_BITS
        starts = run_starts(row_prefixes).nonzero()[0]
        candidates = prefixes.searchsorted(row_prefixes.take(starts))
        candidates = candidates.repeat(np.diff(starts, append=len(rows)))
        own_columns = rows.identities.columns[: len(keys.columns)]
        while len(todo):  # keys of one prefix lie side by side: each is compared in turn
            at = candidates[todo]
            inside = at < len(keys)
            inside[inside] &= prefixes[at[inside]] == row_prefixes[todo[inside]]
            todo, at = todo[inside], at[inside]
            equal = same_rows(keys.columns, at, own_columns, todo)
            indices[todo[equal]] = at[equal]
            todo = todo[~equal]
            candidates[todo] += 1
        chosen = np.flatnonzero(indices >= 0)
        chosen = chosen[np.argsort(indices[chosen], kind="stable")]
        return rows, chosen, indices[chosen]
