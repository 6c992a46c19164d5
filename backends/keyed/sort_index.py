"""An index of a key group's rows by sort key, for range reads."""

from collections.abc import Iterable
from itertools import compress
from typing import Any

import numpy as np

from holdfast.backends.keyed.table import Flags, SortKeys

Identity = tuple[Any, ...]


class SortIndex:
    """Identities by sort key.

    Added identities are sorted in at the next access. Removed ones are skipped: at the front until the next
    access, elsewhere until they outnumber the others.

    Args:
        identities: Distinct identities with their sort keys.
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
        """Add an identity that the index doesn't have."""
        if identity in self._removed:
            self._removed.remove(identity)
        else:
            self._identities.append(identity)
            self._added.append(sort_key)

    def remove(self, identity: Identity) -> None:
        """Remove an identity of the index."""
        self._removed.add(identity)

    def between(
        self, first: SortKeys, end: SortKeys, endings: Flags | None = None
    ) -> list[Identity]:
        """Return the identities of ranges `first[i] <= sort key < end[i]`, range by range, each by sort key.

        Args:
            first: Inclusive lower bound of each range.
            end: Exclusive upper bound of each range.
            endings: A flag for each value of a sort key's lowest 16 bits, whether to return such identities;
                None returns all.
        """
        self._refresh()
        edges = self._sort_keys.searchsorted([first, end])
        positions = [self._positions[low:high] for low, high in edges.T.tolist()]
        if endings is not None:
            for number, (low, high) in enumerate(edges.T.tolist()):
                is_wanted = endings.take(self._sort_keys[low:high].astype(np.uint16))
                positions[number] = positions[number].compress(is_wanted)
        chosen = [self._identities[position] for position in np.concatenate(positions).tolist()]
        if not self._removed:
            return chosen
        return [identity for identity in chosen if identity not in self._removed]

    def min_sort_key(self) -> int | None:
        """Return the smallest sort key; None if the index is empty."""
        self._refresh()
        return int(self._sort_keys[0]) if len(self._sort_keys) else None

    def _refresh(self) -> None:
        if self._added:
            added = np.array(self._added, np.uint64)
            order = np.argsort(added, kind="stable")
            at = self._sort_keys.searchsorted(added[order], "right")
            positions = order + (len(self._identities) - len(added))
            self._sort_keys = np.insert(self._sort_keys, at, added[order])
            self._positions = np.insert(self._positions, at, positions)
            self._added = []
        if self._removed:
            self._drop_removed()

    def _drop_removed(self) -> None:
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
