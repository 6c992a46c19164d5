"""A value of each key, for many keys at once."""

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import Elements
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.state_rows import StateRows, check_length
from holdfast.backends.keyed.table import Operation


class ValueColumns:
    """The values of a state, by arrays.

    Args:
        rows: The rows of the state, one for each key that has a value.
        default: What keys have that have no value; None for nothing.
    """

    def __init__(self, rows: StateRows, default: Any = None) -> None:
        self.rows = rows
        self.default = default

    def get(self, keys: Keys) -> pa.Array:
        """The value of each key; the default, or null, where there is none.

        Raises:
            InvalidRequestError: The keys are not such as the state has.
        """
        self.rows.check(keys)
        self.rows.settle()
        values = self.stored(keys)
        if self.default is None or not values.null_count:
            return values
        default = self.rows.form.encoded([self.default])
        filled = pa.concat_arrays([values, default])
        own = np.arange(len(values))
        return filled.take(
            pa.array(np.where(values.is_valid().to_numpy(zero_copy_only=False), own, len(values)))
        )

    def put(self, keys: Keys, values: Elements) -> None:
        """Set the value of each key; null removes it.

        Args:
            keys: Whose values.
            values: A value for each of the keys.

        Raises:
            InvalidRequestError: The keys are not such as the state has, or a value is of another type.
        """
        self.rows.check(keys)
        array = self.rows.form.encoded_or_null(values)
        check_length(self.rows.name, len(array), len(keys), "keys")
        self.rows.settle()
        self.store(keys, array)

    def clear(self, keys: Keys) -> None:
        """Remove the values. Raises `InvalidRequestError` for keys that are not such as the state has."""
        self.rows.check(keys)
        self.rows.settle()
        self.rows.delete(keys)

    def stored(self, keys: Keys) -> pa.Array:
        """The value of each key as it is stored; null where there is none."""
        _, values = self.rows.get(keys)
        return values

    def store(self, keys: Keys, values: pa.Array) -> None:
        """Put the values that are there, and remove those that are null."""
        if not values.null_count:
            self.rows.put(keys, values)
            return
        missing = values.is_null().to_numpy(zero_copy_only=False)
        operations = np.where(missing, np.uint8(Operation.DELETE), np.uint8(Operation.PUT))
        self.rows.write(keys, values, operations)
