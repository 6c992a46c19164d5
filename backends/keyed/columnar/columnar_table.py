"""A table in sorted columns: what was written lately, over immutable runs in segments."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.columnar.earliest_timer import earliest_time
from holdfast.backends.keyed.columnar.lookup import Hits, Level, look_up
from holdfast.backends.keyed.columns import (
    Column,
    Rows,
    concatenated,
    fold_values,
    from_arrow,
    take,
    take_or_null,
    to_arrow,
)
from holdfast.backends.keyed.segments import (
    END,
    Layer,
    Run,
    Section,
    SectionRows,
    Slice,
    SortedRows,
    TableManifest,
    merged,
    migration_of,
    rows_at,
    rows_between,
    scan,
    table_rows,
    whole,
)
from holdfast.backends.keyed.table import (
    Flags,
    Identities,
    Migration,
    Operation,
    SortKeys,
    TableRows,
    TableSpec,
)
from holdfast.errors import InvalidRequestError

_MOST_PIECES = 8
"""More pieces of what was written lately become one."""


class ColumnarTable:
    """The rows of one state.

    Args:
        spec: The table's name, columns and types.
        manifest: The table's runs; the manifest's last spec is that of the table.
        sections: Returns the section which contains a slice.
        sort_keys: The least sort key of the subtask, and the least above its own.
        now_ms: Returns the time of the batch.
        migration: For sections that were written with other values.
        rewrite: Whether the next snapshot has no such sections any more.
    """

    def __init__(
        self,
        spec: TableSpec,
        manifest: TableManifest,
        *,
        sections: Callable[[Slice], Section],
        sort_keys: tuple[int, int],
        now_ms: Callable[[], int],
        migration: Migration | None = None,
        rewrite: bool = False,
    ) -> None:
        self.spec = spec
        self.manifest = manifest
        self.sort_keys = sort_keys
        self.pieces: list[SortedRows] = []  # newest first
        self._sections = sections
        self._now_ms = now_ms
        self._migration = migration
        self._rewrite = rewrite
        self._stored = [stored.spec() for stored in manifest.specs]
        self._migrations = self._migrations_of(self._stored)
        # By segment and section. The section is kept to tell whether its segment was fetched again.
        self._sources: dict[tuple[str, int], tuple[Section, SectionRows]] = {}

    @property
    def is_rewritten(self) -> bool:
        """Whether the next snapshot must merge all runs, because some were written with other values."""
        return self._rewrite and len(self.manifest.specs) > 1

    @property
    def now_ms(self) -> int:
        """The time of the batch, milliseconds."""
        return self._now_ms()

    def get(
        self, identities: Identities, *, include_expired: bool = False
    ) -> tuple[Flags, tuple[pa.Array, ...]]:
        ids = [from_arrow(column) for column in identities.columns]
        now_ms = None if include_expired else self.now_ms
        hits = look_up(self._levels(), self.spec, identities.sort_keys, ids, now_ms=now_ms)
        present = np.zeros(len(identities), bool)
        for where, _ in hits:
            present[where] = True
        if self.spec.folds and sum(len(where) for where, _ in hits) > int(present.sum()):
            return present, self._folded(hits, len(identities), present)
        return present, self._gathered(hits, len(identities), present)

    def write(
        self,
        identities: Identities,
        values: Sequence[pa.Array],
        operation: Operation | npt.NDArray[np.uint8] = Operation.PUT,
    ) -> None:
        count = len(identities)
        self._check(identities, values)
        if not count:
            return
        operations: npt.NDArray[np.uint8] | None
        if isinstance(operation, np.ndarray):
            operations = operation if operation.any() else None
        else:
            operations = None if operation is Operation.PUT else np.full(count, operation, np.uint8)
        times = None if self.spec.ttl_ms is None else np.full(count, self.now_ms, np.int64)
        ids = [from_arrow(column) for column in identities.columns]
        columns = [from_arrow(column) for column in values]
        self.pieces.insert(0, SortedRows(identities.sort_keys, operations, times, ids, columns))
        if len(self.pieces) > _MOST_PIECES:
            self.settle()

    def rows_between(
        self,
        first: SortKeys,
        end: SortKeys,
        *,
        endings: Flags | None = None,
        include_expired: bool = False,
    ) -> TableRows:
        layers = self._layers_between(first, end)
        now_ms = None if include_expired else self.now_ms
        rows = rows_between(layers, self.spec, first, end, endings=endings, now_ms=now_ms)
        return table_rows(rows, self.spec)

    def scan(self, step_rows: int = 1 << 20) -> Iterator[TableRows]:
        count = sum(piece.rows for piece in self.pieces)
        count += sum(run.rows for run in self.manifest.runs)
        first, end = self.sort_keys
        layers = self._layers()
        steps = scan(
            lambda *_: layers,
            self.spec,
            rows=count,
            step_rows=step_rows,
            first=first,
            end=end,
            now_ms=self.now_ms,
        )
        return (table_rows(step, self.spec) for step in steps)

    def delete_up_to(self, time_ms: int) -> None:
        runs = []
        for run in self.manifest.runs:
            slices = (
                msgspec.structs.replace(piece, dead_up_to_ms=max(piece.dead_up_to_ms, time_ms))
                for piece in run.slices
            )
            runs.append(Run(run.level, tuple(slices)))
        self.manifest = msgspec.structs.replace(self.manifest, runs=tuple(runs))
        pieces = []
        for piece in self.pieces:
            living = Layer(piece, dead_up_to_ms=time_ms).is_living(np.arange(piece.rows))
            if living.any():
                pieces.append(rows_at(piece, living.nonzero()[0]))
        self.pieces = pieces

    def earliest_time(self) -> int | None:
        return earliest_time(self._layers(), self.spec, self.sort_keys)

    def settle(self) -> SortedRows | None:
        """Make what was written lately one piece, and give it; None if nothing was."""
        if len(self.pieces) > 1:
            parts = [whole(piece) for piece in self.pieces]
            self.pieces = [merged(parts, self.spec, is_bottom=False, now_ms=self.now_ms)]
        return self.pieces[0] if self.pieces else None

    def layer(self, piece: Slice) -> Layer:
        """The rows of a slice."""
        key = piece.segment, piece.section
        section = self._sections(piece)
        of, source = self._sources.get(key, (None, None))
        if source is None or of is not section:
            stored, migration = self._stored[piece.spec], self._migrations[piece.spec]
            source = SectionRows(section, stored, migration)
            self._sources[key] = section, source
        return Layer(source, piece.first, piece.end, piece.dead_up_to_ms)

    def commit(self, manifest: TableManifest) -> None:
        """Continue with a manifest that contains all that was written."""
        if manifest.specs != self.manifest.specs:
            self._stored = [stored.spec() for stored in manifest.specs]
            self._migrations = self._migrations_of(self._stored)
        self.manifest = manifest
        self.pieces = []
        keys = {(piece.segment, piece.section) for piece in manifest.slices()}
        self._sources = {key: source for key, source in self._sources.items() if key in keys}

    def _migrations_of(self, stored: Sequence[TableSpec]) -> list[Migration | None]:
        """For each spec of the manifest what makes its values the table's; the last one is the table's own."""
        before = [migration_of(spec, self.spec, self._migration) for spec in stored[:-1]]
        return [*before, None]

    def _layers(self) -> list[Layer]:
        """All layers, newest first."""
        edges = np.array(self.sort_keys, np.uint64)
        return list(self._layers_between(edges[:1], edges[1:]))

    def _layers_between(self, first: SortKeys, end: SortKeys) -> Iterator[Layer]:
        """The layers that can have rows in one of the ranges, newest first."""
        yield from (Layer(piece) for piece in self.pieces)
        for piece in self.manifest.slices():
            number = int(end.searchsorted(np.uint64(piece.first), "right"))
            if number < len(first) and first[number] < piece.end:
                yield self.layer(piece)

    def _levels(self) -> Iterator[Level]:
        for piece in self.pieces:
            yield Level([(0, END)], partial(_layer_of_piece, piece))
        for run in self.manifest.runs:
            yield Level(
                [(piece.first, piece.end) for piece in run.slices],
                partial(self._layer_of_run, run),
                is_bottom=run is self.manifest.runs[-1],
            )

    def _layer_of_run(self, run: Run, number: int) -> Layer:
        return self.layer(run.slices[number])

    def _gathered(self, hits: Hits, count: int, present: Flags) -> tuple[pa.Array, ...]:
        """The values of each identity, which has one row at most."""
        if len(hits) == 1 and present.all():
            columns = hits[0][1]
            return tuple(
                to_arrow(c, f.type) for c, f in zip(columns, self.spec.values, strict=True)
            )
        return tuple(
            _scattered(
                [(where, columns[number]) for where, columns in hits], count, present, field.type
            )
            for number, field in enumerate(self.spec.values)
        )

    def _folded(self, hits: Hits, count: int, present: Flags) -> tuple[pa.Array, ...]:
        """The values of each identity, folded from several rows."""
        hits = hits[::-1]  # oldest first
        where = np.concatenate([positions for positions, _ in hits])
        order = np.argsort(where, kind="stable")
        bounds = np.concatenate([[0], np.cumsum(np.bincount(where, minlength=count))])
        columns = [
            take(concatenated([values[number] for _, values in hits], field.type), order)
            for number, field in enumerate(self.spec.values)
        ]
        folded = fold_values(columns, bounds, self.spec)
        at = np.where(present, np.arange(count), -1)
        return tuple(
            to_arrow(column, field.type) if present.all() else take_or_null(column, at, field.type)
            for column, field in zip(folded, self.spec.values, strict=True)
        )

    def _check(self, identities: Identities, values: Sequence[pa.Array]) -> None:
        given = [column.type for column in (*identities.columns, *values)]
        wanted = [field.type for field in (*self.spec.id_fields, *self.spec.values)]
        lengths = {len(column) for column in (*identities.columns, *values)}
        if given != wanted or lengths - {len(identities)}:
            message = (
                f"state {self.spec.name!r} has columns of {wanted}, and is given {given} "
                f"of {sorted(lengths)} rows"
            )
            raise InvalidRequestError(message)


def _layer_of_piece(piece: SortedRows, _: int) -> Layer:
    return Layer(piece)


def _scattered(
    parts: Sequence[tuple[Rows, Column]], count: int, present: Flags, type: pa.DataType
) -> pa.Array:
    """A column of `count` rows, whose values are in the parts; null where there is none."""
    if not parts:
        return pa.nulls(count, type)
    first = parts[0][1]
    if isinstance(first, np.ndarray) and all(isinstance(c, np.ndarray) for _, c in parts):
        values = np.zeros(count, first.dtype)
        for where, column in parts:
            values[where] = column
        return to_arrow(values, type, None if present.all() else present)
    rows = np.full(count, -1, np.int64)
    where = np.concatenate([positions for positions, _ in parts])
    rows[where] = np.arange(len(where))
    return take_or_null(concatenated([column for _, column in parts], type), rows, type)
