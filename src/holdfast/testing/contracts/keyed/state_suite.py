"""The base of suites of states over tables: a backend, keys, and types of states."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from holdfast.backends.descriptors import StateTtlConfig
from holdfast.backends.keyed import KeyedStateBackend, Keys
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.testing.contracts.keyed.keyed_checkpoints import ALL, GROUPS, KeyedSuite

KEY = pa.schema([("user", pa.string())])
WINDOW = pa.schema([("window", pa.int64())])
ROW = pa.schema([("n", pa.int64()), ("total", pa.float64())])
TTL = StateTtlConfig(timedelta(milliseconds=100))


@dataclass(frozen=True)
class Place:
    """A class of values."""

    name: str
    size: int


def values_by_user(keys: Keys, column: Any) -> dict[Any, Any]:
    """Return a column of values by key, as Python objects."""
    rows = column.to_pylist() if isinstance(column, pa.Array) else column
    return dict(zip(keys.columns[0].to_pylist(), rows, strict=True))


class StateSuite(KeyedSuite):
    """A suite over a backend of any `StateTables`."""

    @pytest.fixture
    def backend(self) -> Iterator[KeyedStateBackend]:
        backend = self.restore_backend(())
        yield backend
        backend.close()
        backend.close()

    def restore_backend(
        self, handles: Sequence[SegmentsStateHandle], now_ms: int = 1000
    ) -> KeyedStateBackend:
        backend = KeyedStateBackend(self.tables_of(ALL, handles), KEY, GROUPS)
        backend.advance_time(now_ms)
        return backend

    def keys(self, backend: KeyedStateBackend, *users: str | None) -> Keys:
        return backend.keys([pa.array(users, pa.string())])

    def select_key(self, backend: KeyedStateBackend, user: str | None = "a") -> None:
        """Start a batch of several keys, and make that of a user current."""
        users = list(dict.fromkeys([user, "b", None]))
        keys = self.keys(backend, *users)
        backend.begin_batch(keys)
        backend.set_current_key(int(keys.codes[0]))
