"""States of the newest checkpoint: their sizes and largest keys, and the rows of a key."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.backends.inspection import KeySizes, OpenState, find_state, key_sizes
from holdfast.backends.keyed import BlockCache
from holdfast.cli.json_values import json_value
from holdfast.cli.report_charts import Figure, key_group_figure
from holdfast.cli.show import state_values
from holdfast.errors import InvalidRequestError
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import batch_of, iso_time

_MAX_KEYS = 20

_MAX_SCAN_BYTES = 64 << 20
"""Size of rows that are read to find the largest keys: less than a second of work."""

_MAX_ROWS = 1000
"""Rows of a key in an answer."""

_MAX_OPEN_STATES = 16
"""States whose manifests are kept for look-ups."""


class Freshness(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint from which an answer was read.

    Attributes:
        checkpoint: Checkpoint id.
        batch: The last micro-batch that it contains.
        completed: Time of its completion, ISO 8601 in UTC.
        completed_ms: The same in milliseconds since 1970.
        age_ms: Milliseconds since then, by the clock of this server.
    """

    checkpoint: int
    batch: int | None
    completed: str
    completed_ms: int
    age_ms: int

    @classmethod
    def of(cls, checkpoint: CompletedCheckpoint, *, now_ms: int) -> "Freshness":
        metadata = checkpoint.metadata
        return cls(
            checkpoint=metadata.checkpoint_id,
            batch=batch_of(metadata),
            completed=iso_time(metadata.created_ms),
            completed_ms=metadata.created_ms,
            age_ms=now_ms - metadata.created_ms,
        )


class SubtaskPart(msgspec.Struct, frozen=True):
    """A subtask's part of a state; `key_groups` has the first and the last of keyed state."""

    subtask: int
    stored_elements: int
    bytes: int
    key_groups: tuple[int, int] | None


class LargeKey(msgspec.Struct, frozen=True):
    """A key with its columns, the number of its rows, and their size in Arrow."""

    key: dict[str, Any]
    rows: int
    bytes: int


class KeyGroups(msgspec.Struct, frozen=True):
    """Current rows of a state by key group, and their size in Arrow.

    Attributes:
        rows: Number of rows in each key group.
        bytes: Their size.
        largest_keys: The largest keys, the largest first.
        is_complete: Whether all rows were read; if not, the numbers are those of the first subtasks.
        figure: A chart of the sizes.
    """

    rows: list[int]
    bytes: list[int]
    largest_keys: list[LargeKey]
    is_complete: bool
    figure: Figure

    @classmethod
    def of(cls, sizes: KeySizes) -> "KeyGroups":
        keys = [
            LargeKey(
                {
                    name: json_value(column[0])
                    for name, column in zip(each.key.schema.names, each.key.columns, strict=True)
                },
                each.rows,
                each.bytes,
            )
            for each in sizes.largest
        ]
        figure = key_group_figure(sizes.rows, sizes.bytes)
        return cls(sizes.rows, sizes.bytes, keys, sizes.is_complete, figure)


class StateDetails(msgspec.Struct, frozen=True):
    """A state in the newest checkpoint.

    Attributes:
        freshness: The checkpoint.
        operator: The operator's uid.
        state: Kind, size and columns, as in `holdfast show --json`.
        key: Columns of the key by name, with their types; empty without a key.
        subtasks: The parts of the state.
        key_groups: Sizes by key group, and the largest keys; None without keys.
    """

    freshness: Freshness
    operator: str
    state: dict[str, Any]
    key: dict[str, str]
    subtasks: list[SubtaskPart]
    key_groups: KeyGroups | None


class StateRows(msgspec.Struct, frozen=True):
    """The rows of a key in the newest checkpoint, as in `holdfast cat --json`.

    Attributes:
        freshness: The checkpoint.
        operator: The operator's uid.
        state: The state's name.
        rows: The rows; none if the state does not contain the key.
        is_complete: False if the key has more rows.
    """

    freshness: Freshness
    operator: str
    state: str
    rows: list[dict[str, Any]]
    is_complete: bool


def state_details(
    checkpoint: CompletedCheckpoint, operator: str, name: str, kind: str | None, *, now_ms: int
) -> StateDetails:
    """Return a state with the sizes of its keys.

    Raises:
        InvalidRequestError: There is no such state.
        CheckpointNotFoundError: A state file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
        StateMigrationError: As for `read_state`.
    """
    state = find_state(checkpoint.metadata, operator, name, raw=None, kind=kind)
    max_parallelism = checkpoint.metadata.operators[operator].max_parallelism
    sizes = key_sizes(state, max_parallelism, max_keys=_MAX_KEYS, max_bytes=_MAX_SCAN_BYTES)
    spec = state.table_spec
    return StateDetails(
        freshness=Freshness.of(checkpoint, now_ms=now_ms),
        operator=operator,
        state=state_values(state),
        key={} if spec is None else {field.name: str(field.type) for field in spec.key},
        subtasks=[
            SubtaskPart(
                part.subtask,
                part.elements,
                sum(length for _, _, length in part.extents()),
                getattr(getattr(part, "handle", None), "key_groups", None),
            )
            for part in state.parts
        ],
        key_groups=None if sizes is None else KeyGroups.of(sizes),
    )


def state_rows(
    checkpoint: CompletedCheckpoint,
    operator: str,
    name: str,
    kind: str | None,
    key: Mapping[str, str | None] | str,
    *,
    now_ms: int,
) -> StateRows:
    """Return the rows of a key. Raises as `read_state` does."""
    chosen = _Choice(
        checkpoint.location.external_pointer,
        checkpoint.metadata.created_ms,
        operator,
        name,
        kind,
        checkpoint,
    )
    rows = (
        {column: json_value(value) for column, value in zip(batch.schema.names, row, strict=True)}
        for batch in _open(chosen).iter_rows(key)
        for row in zip(*batch.columns, strict=True)
    )
    first = list(itertools.islice(rows, _MAX_ROWS + 1))
    return StateRows(
        freshness=Freshness.of(checkpoint, now_ms=now_ms),
        operator=operator,
        state=name,
        rows=first[:_MAX_ROWS],
        is_complete=len(first) <= _MAX_ROWS,
    )


@dataclass(frozen=True)
class _Choice:
    """A state of a checkpoint; another driver may complete a checkpoint of the same name again."""

    pointer: str
    completed_ms: int
    operator: str
    name: str
    kind: str | None
    checkpoint: CompletedCheckpoint = field(compare=False)


_BLOCKS = BlockCache()


@lru_cache(maxsize=_MAX_OPEN_STATES)
def _open(chosen: _Choice) -> OpenState:
    return OpenState(chosen.checkpoint, chosen.operator, chosen.name, chosen.kind, _BLOCKS)


def key_in_query(query: Mapping[str, str]) -> Mapping[str, str | None] | str:
    """Return the key that a query names: `key=VALUE` for one column, `key.NAME=VALUE` and `null=NAME,NAME` for several.

    Raises:
        InvalidRequestError: There is no key.
    """
    names: dict[str, str | None] = {
        name.removeprefix("key."): value for name, value in query.items() if name.startswith("key.")
    }
    names |= dict.fromkeys(filter(None, query.get("null", "").split(",")))
    if names:
        return names
    if "key" not in query:
        message = "name the key: ?key=VALUE, or ?key.NAME=VALUE for each of its columns"
        raise InvalidRequestError(message)
    return query["key"]
