"""Elements that only pickle can store; never used unless somebody says so by name."""

import pickle
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.backends.arrow import MisfitError
from holdfast.backends.serializers.bytes_serializer import BytesSerializer
from holdfast.backends.serializers.compatibility import AS_IS, Compatibility
from holdfast.backends.serializers.stored_form import StoredSerializer
from holdfast.common import raise_shortage
from holdfast.errors import CheckpointCorruptedError

_PROTOCOL = 5


@dataclass(frozen=True, slots=True)
class Pickled:
    """The element type of objects that are stored by pickle.

    Whoever can change the stored bytes can make the reader run any code, so both the job that writes
    and the job that reads have to name it. The elements can't be read as a DataFrame, nor by a
    program that lacks their classes; and they don't migrate.

    Attributes:
        type: The class that elements have to be instances of.
    """

    type: type = object


class PickleSerializer(BytesSerializer):
    """Stores each element as a pickle of its own, protocol 5."""

    def __init__(self, pickled: Pickled) -> None:
        self._type = pickled.type

    @property
    def stored(self) -> StoredSerializer:
        return StoredSerializer("pickle", f"{self._type.__module__}.{self._type.__qualname__}")

    def encode_one(self, value: Any) -> bytes:
        if value is None or not isinstance(value, self._type):
            message = f"{type(value).__name__} is no {self._type.__qualname__}"
            raise MisfitError(message)
        try:
            return pickle.dumps(value, _PROTOCOL)
        except Exception as error:  # noqa: BLE001  # of any class's own code
            raise_shortage(error)
            message = f"{type(value).__name__} can't be pickled ({type(error).__name__})"
            raise MisfitError(message) from None

    def encode_rows(self, rows: pa.ChunkedArray) -> list[pa.Array]:
        if rows.null_count or not pa.types.is_binary(rows.type):
            raise MisfitError("pickled elements are given as the bytes of their pickles")
        return list(rows.cast(self.storage_type).chunks)

    def decode_one(self, encoded: Any) -> Any:
        try:
            return pickle.loads(encoded)  # noqa: S301  # named by the job
        except Exception as error:  # noqa: BLE001  # of any class's own code; its text may hold data
            raise_shortage(error)
            which = f": {error}" if isinstance(error, (ImportError, AttributeError)) else ""
            message = f"a pickled element can't be read ({type(error).__name__}{which})"
            raise CheckpointCorruptedError(message) from None

    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        return [self.decode_one(pickle) for pickle in column.to_pylist()]

    def compatibility(
        self,
        stored: StoredSerializer,
        storage_type: pa.DataType,  # noqa: ARG002  # it is bytes
    ) -> Compatibility:
        if stored.kind != "pickle":
            return Compatibility.incompatible(f"it was stored by {stored.kind}, not pickled")
        if self._type is not object and stored.name != self.stored.name:
            return Compatibility.incompatible("pickles of another class can't be made these")
        return AS_IS
