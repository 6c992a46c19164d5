"""The states or checkpoints that the options of the data source ask for."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from holdfast.backends.inspection import ReadableState, readable_state, states
from holdfast.common import json_decoder
from holdfast.errors import InvalidRequestError
from holdfast.spark.data_source.spark_types import spark_schema_of
from holdfast.spark.settings import Stores, check_known
from holdfast.spark_progress import subtasks

SETTINGS = "settings"
"""The option for settings of Spark as a JSON object. Spark makes small letters of options' names."""

_OPTIONS = ("path", "view", "operator", "state", "raw", "kind", "key", SETTINGS)
_OPTIONS_OF_STORES = ("spark.hadoop.", "spark.holdfast.s3.")
_VIEWS = ("states", "elements", "metadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """A view of a checkpoint or savepoint: its rows, or where they are.

    Attributes:
        stores: How to reach the checkpoint.
        schema: The columns.
        table: The rows, if the view is small; else None.
        state: The state whose elements the view shows; else None.
    """

    stores: Stores
    schema: pa.Schema
    table: pa.Table | None = None
    state: ReadableState | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "StateView":
        """The view that options of the data source name; reads the checkpoint's metadata.

        Raises:
            InvalidRequestError: An option is unknown or can't be used, or there is no such state.
            CheckpointError: The checkpoint can't be read.
        """
        given = {key.lower(): value for key, value in options.items()}
        _check(given)
        settings = _settings_in(given.get(SETTINGS, "{}")) | {
            key: value for key, value in given.items() if key.startswith(_OPTIONS_OF_STORES)
        }
        check_known(settings)
        pointer = given.get("path")
        if pointer is None:
            raise InvalidRequestError("no checkpoint or savepoint; name one in load(...)")
        stores = Stores.parse(settings, pointer)
        stores.use()
        operator, state, raw = given.get("operator"), given.get("state"), given.get("raw")
        kind, key = given.get("kind"), _key_in(given.get("key"))
        is_named = any(value is not None for value in (operator, state, raw, kind, key))
        view = given.get("view", "elements" if is_named else "states").lower()
        match view:
            case "elements":
                readable = readable_state(
                    pointer,
                    operator,
                    state,
                    raw=raw,  # type: ignore[arg-type]  # checked there
                    kind=kind,
                    key=key,
                )
                return cls(stores=stores, schema=readable.schema, state=readable)
            case "states" | "metadata" if is_named:
                message = (
                    f"view {view} shows all states; leave operator, state, raw, kind and key out"
                )
                raise InvalidRequestError(message)
            case "states" | "metadata":
                table = states(pointer) if view == "states" else subtasks(pointer)
                return cls(stores=stores, schema=table.schema, table=table)
        raise InvalidRequestError(f"no view {view!r}; views are {', '.join(_VIEWS)}")

    @property
    def spark_schema(self) -> StructType:
        """The columns of the view as Spark has them.

        Raises:
            InvalidRequestError: Spark has no such type.
        """
        return spark_schema_of(self.schema)


def _check(keys: Iterable[str]) -> None:
    for key in keys:
        if key not in _OPTIONS and not key.startswith(_OPTIONS_OF_STORES):
            nearest = difflib.get_close_matches(key, _OPTIONS, n=1, cutoff=0.0)[0]
            message = f"no option {key!r}; did you mean {nearest!r}?"
            raise InvalidRequestError(message)


def _key_in(text: str | None) -> dict[str, Any] | None:
    """A value for each of the key's columns, by name."""
    if text is None:
        return None
    try:
        return json_decoder(dict[str, Any]).decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        message = (
            f"option key must be a JSON object, of values by the key's columns, and not {text!r}"
        )
        raise InvalidRequestError(message) from None


def _settings_in(text: str) -> dict[str, str]:
    try:
        return json_decoder(dict[str, str]).decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):  # not the text: it may hold a secret
        message = "option settings must be a JSON object, of texts by names of settings of Spark"
        raise InvalidRequestError(message) from None
