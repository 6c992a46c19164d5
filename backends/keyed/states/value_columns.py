"""A value of each key, for many keys at once."""

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import Elements
from holdfast.backends.keyed.columns import concatenate_arrays, take_arrow
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.state_columns import StateColumns
from holdfast.backends.keyed.states.state_rows import ValueRows, check_length


class ValueColumns(StateColumns):
    """The values of a state, by arrays.

    Args:
        rows: The rows of the state, one for each key that has a value.
        default: The value of keys that have none; None for null.
    """

    def __init__(self, rows: ValueRows, default: Any = None) -> None:
        super().__init__(rows)
        self.default = default

    def get(self, keys: Keys) -> pa.Array:
        """The value of each key; the default, or null, where there is none.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state.
        """
        values = super().get(keys)
        if self.default is None or not values.null_count:
            return values
        default = self.rows.form.encoded([self.default])
        filled = concatenate_arrays([values, default])
        is_there = values.is_valid().to_numpy(zero_copy_only=False)
        return take_arrow(filled, np.where(is_there, np.arange(len(values)), len(values)))

    def put(self, keys: Keys, values: Elements) -> None:
        """Set the value of each key; null removes it.

        Args:
            keys: The keys whose values are written.
            values: A value for each of the keys.

        Raises:
            InvalidRequestError: The keys have other types, namespaces or key groups than the state, or a value is of another type.
        """
        self.rows.check(keys)
        array = self.rows.form.encoded_or_null(values)
        check_length(self.rows.name, len(array), len(keys), "keys")
        self.rows.settle()
        self.rows.put_or_delete(keys, array)
