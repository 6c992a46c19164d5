"""The base of all suites of keyed state."""

from collections.abc import Iterator, Sequence

import pytest

from holdfast.backends.keyed import StateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.testing.contracts.keyed.keyed_checkpoints import KeyedCheckpoints

GROUPS = 16
ALL = KeyGroupRange(0, GROUPS - 1)


class KeyedSuite:
    """A suite over any `StateTables`."""

    def tables_of(
        self, key_groups: KeyGroupRange, handles: Sequence[SegmentsStateHandle] = ()
    ) -> StateTables:
        """Return new tables of the key groups, restored from handles."""
        raise NotImplementedError

    @pytest.fixture
    def checkpoints(self) -> Iterator[KeyedCheckpoints]:
        checkpoints = KeyedCheckpoints()
        yield checkpoints
        checkpoints.delete()
