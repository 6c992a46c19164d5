"""The order of a key group's rows, for those who ask for ranges of it."""

from collections.abc import Iterable
from itertools import compress
from typing import Any

import numpy as np

from holdfast.backends.keyed.table import Flags, SortKeys

Identity = tuple[Any, ...]


class SortIndex:
    """Identities by sort key.

    Added keys are sorted in at the next access. Removed keys are passed over: if they
    come first, until somebody asks, else until they are the greater part.

    Args:
        identities: Identities, none twice, with their sort keys.
    """

    def __init__(self, identities: Iterable[tuple[Identity, int]]) -> None:
        self._identities: list[Identity] = []
        self._removed: set[Identity] = set()
        self._added: list[int] = []  # the sort keys of the last identities
        self._sort_keys = np.empty(0, np.uint64)  # ascending, of the others
        self._positions = np.empty(0, np.int64)  # of these among the identities
        for identity, sort_key in identities:
            self.add(identity, sort_key)

    def add(self, identity: Identity, sort_key: int) -> None:
        """Add an identity that is not there."""
        if identity in self._removed:
            self._removed.remove(identity)
        else:
            self._identities.append(identity)
            self._added.append(sort_key)

    def remove(self, identity: Identity) -> None:
        """Remove an identity that is there."""
        self._removed.add(identity)

    def between(
        self, first: SortKeys, end: SortKeys, endings: Flags | None = None
    ) -> list[Identity]:
        """The identities of ranges `first[i] <= sort key < end[i]`, range by range, each by sort key.

        Args:
            first: Least sort key of each range.
            end: Least sort key above each range.
            endings: For each number of 16 bits whether those count whose sort key ends in it; None if all do.
        """
        self._settle()
        edges = self._sort_keys.searchsorted([first, end])
        positions = [self._positions[low:high] for low, high in edges.T.tolist()]
        if endings is not None:
            for number, (low, high) in enumerate(edges.T.tolist()):
                ends_so = endings.take(self._sort_keys[low:high].astype(np.uint16))
                positions[number] = positions[number].compress(ends_so)
        chosen = [self._identities[position] for position in np.concatenate(positions).tolist()]
        if not self._removed:
            return chosen
        return [identity for identity in chosen if identity not in self._removed]

    def least(self) -> int | None:
        """The least sort key; None if there is no identity."""
        self._settle()
        return int(self._sort_keys[0]) if len(self._sort_keys) else None

    def _settle(self) -> None:
        if self._added:
            added = np.array(self._added, np.uint64)
            order = np.argsort(added, kind="stable")
            at = self._sort_keys.searchsorted(added[order], "right")
            positions = order + (len(self._identities) - len(added))
            self._sort_keys = np.insert(self._sort_keys, at, added[order])
            self._positions = np.insert(self._positions, at, positions)
            self._added = []
        if self._removed:
            self._forget_removed()

    def _forget_removed(self) -> None:
        front = 0
        for position in self._positions:
            identity = self._identities[position]
            if identity not in self._removed:
                break
            self._removed.remove(identity)
            front += 1
        self._sort_keys, self._positions = self._sort_keys[front:], self._positions[front:]
        if 2 * (len(self._positions) - len(self._removed)) >= len(self._identities):
            return
        identities = [self._identities[position] for position in self._positions]
        is_kept = [identity not in self._removed for identity in identities]
        self._identities = list(compress(identities, is_kept))
        self._sort_keys = self._sort_keys[is_kept]
        self._positions = np.arange(len(self._identities))
        self._removed = set()
