"""The rows of a single key in a table of a checkpoint, without reading the rest."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from holdfast.backends.keyed.columns import from_arrow, same_rows
from holdfast.backends.keyed.keys import SUB_BITS, Keys
from holdfast.backends.keyed.segments import RestoredTable
from holdfast.backends.keyed.table import Identities, Migration, TableRows, TableSpec

_GROUP_BITS = 48


def rows_of_key(
    table: RestoredTable,
    key: Sequence[pa.Array],
    max_parallelism: int,
    spec: TableSpec | None = None,
    migration: Migration | None = None,
) -> Iterator[TableRows]:
    """The rows of a key: one, or one for each namespace, map key or time of a timer.

    Of a table of timers all rows of the key's key group are read, for they lie by time.

    Args:
        table: The table.
        key: The key's columns, of one row each.
        max_parallelism: Number of key groups of the job.
        spec: As for `RestoredTable.rows`.
        migration: As for `RestoredTable.rows`.

    Raises:
        StateMigrationError: The table can't be what it is to hold now.
        CheckpointCorruptedError: A segment is damaged.
    """
    keys = Keys.of(key, max_parallelism)
    wanted = [from_arrow(column) for column in keys.columns]
    for rows in table.between(*_range_of(table.spec, int(keys.sort_keys[0]))).rows(spec, migration):
        ids = rows.identities.columns
        columns = [from_arrow(column) for column in ids[: len(wanted)]]
        every = np.arange(len(rows))
        chosen = same_rows(columns, every, wanted, np.zeros(len(rows), np.int64)).nonzero()[0]
        if len(chosen):
            at = pa.array(chosen)
            yield TableRows(
                Identities(
                    rows.identities.sort_keys[chosen], tuple(column.take(at) for column in ids)
                ),
                tuple(column.take(at) for column in rows.values),
                None if rows.times_ms is None else rows.times_ms[chosen],
            )


def _range_of(spec: TableSpec, sort_key: int) -> tuple[int, int]:
    """Least sort key of a key's rows, and the least above them."""
    bits = 0
    if spec.kind == "timers":
        bits = _GROUP_BITS
    elif len(spec.namespace) or len(spec.sub_key):
        bits = int(SUB_BITS)
    first = sort_key >> bits << bits
    return first, first + (1 << bits)
