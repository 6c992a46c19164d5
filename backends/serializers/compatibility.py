"""Whether stored elements can be read as the type that a state is asked for with."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa


class Outcome(Enum):
    """Whether elements that were stored can be read as the wanted type.

    Source:
        Flink, TypeSerializerSchemaCompatibility.Type; what is only reconfigured there is as it is
        here.
    """

    AS_IS = "as it is"
    AFTER_MIGRATION = "after migration"
    INCOMPATIBLE = "incompatible"


def _unchanged(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column


@dataclass(frozen=True, slots=True)
class Compatibility:
    """An outcome, and what follows from it.

    Attributes:
        outcome: Whether it can be read.
        reason: Why not, in words; empty if it can.
        migrate: Makes a stored column one of the wanted type. Raises `CheckpointCorruptedError`, and
            Arrow's own errors.
    """

    outcome: Outcome
    reason: str = ""
    migrate: Callable[[pa.ChunkedArray], pa.ChunkedArray] = _unchanged

    @classmethod
    def incompatible(cls, reason: str) -> "Compatibility":
        """The compatibility of elements that can't be read, with the reason."""
        return cls(Outcome.INCOMPATIBLE, reason)


AS_IS = Compatibility(Outcome.AS_IS)
