"""The base of states by arrays that have a value for each key."""

import pyarrow as pa

from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.state_rows import ValueRows


class StateColumns:
    """A state by arrays.

    Args:
        rows: The rows of the state.
    """

    def __init__(self, rows: ValueRows) -> None:
        self.rows = rows

    def get(self, keys: Keys) -> pa.Array:
        """The value of each key; null where there is none.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state.
        """
        self.rows.begin(keys)
        return self.stored(keys)

    def clear(self, keys: Keys) -> None:
        """Remove the values. Raises `InvalidRequestError` for keys that `get` refuses."""
        self.rows.begin(keys)
        self.rows.delete(keys)

    def stored(self, keys: Keys) -> pa.Array:
        """The value of each key as it is stored; null where there is none."""
        _, values = self.rows.get(keys)
        return values
