"""What the state variables of all kinds have in common: when they can be used, and what values they take."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidRequestError
from holdfast.spark.processors import errors
from holdfast.spark.processors.turns import CurrentKey
from holdfast.spark.processors.values import NoValueError, Structs, many_objects


class StateVariable:
    """A state variable of a processor, of the current key.

    Args:
        name: The variable's name.
        kind: Value, List or Map, as Spark's texts have it.
        current: The current key.
    """

    def __init__(self, name: str, kind: str, current: CurrentKey) -> None:
        self._name = name
        self._kind = kind
        self._current = current
        self._is_deleted = False

    def delete(self) -> None:
        """From now on the variable can't be used."""
        self._is_deleted = True

    def _refusal(self, doing: str, operation: str) -> Exception:
        """Why there is no state for an operation now."""
        if self._is_deleted:
            return errors.not_initialized(doing, self._kind, self._name)
        handle_state = self._current.handle_state
        if handle_state in ("PRE_INIT", "CREATED"):
            return errors.invalid_handle_state(doing, f"{self._name}.{operation}", handle_state)
        return errors.no_key(doing, self._name)

    def _number(self, doing: str, operation: str) -> int:
        """The number of the current key."""
        number = self._current.number
        if number is None or self._is_deleted:
            raise self._refusal(doing, operation)
        return number

    def _tuples(self, shape: Structs, column: pa.Array) -> list[tuple[Any, ...]]:
        """The stored values of a column. Raises `InvalidRequestError` where Python has no object for one."""
        with many_objects():
            try:
                return shape.tuples(column)
            except InvalidRequestError as error:
                raise InvalidRequestError(f"state {self._name!r}: {error.args[0]}") from error

    def _row(self, shape: Structs, given: Iterable[Any], doing: str) -> tuple[Any, ...]:
        """What is kept for a value that a processor gives: a tuple of all fields.

        Raises:
            TypeError: It is no row.
            StatefulProcessorError: It has another number of fields than the schema.
            InvalidRequestError: A field is of another type than the schema says.
        """
        if type(given) is not tuple:
            if isinstance(given, str | bytes | Mapping):
                message = (
                    f"state {self._name!r} takes tuples of {shape.name}, and was given {given!r} of type "
                    f"{type(given).__name__}, of which Spark would take the parts"
                )
                raise InvalidRequestError(message)
            given = tuple(given)
        if len(given) != len(shape.fields):
            raise errors.length_mismatch(doing, len(shape.fields), len(given))
        try:
            return shape.values(given)
        except NoValueError as error:
            message = f"state {self._name!r}: {error}; Spark would store something else"
            raise InvalidRequestError(message) from None
