"""A stored column as what a state is asked for now."""

import pyarrow as pa

from holdfast.backends.serializers.arrow_migration import NoWayError
from holdfast.backends.serializers.compatibility import Outcome
from holdfast.backends.serializers.serializer import Serializer
from holdfast.backends.serializers.stored_form import stored_in
from holdfast.common import raise_shortage
from holdfast.errors import StateMigrationError


def migrated_column(
    name: str, field: pa.Field, stored: pa.ChunkedArray, serializer: Serializer
) -> pa.ChunkedArray:
    """A stored column as a serializer wants it.

    Raises:
        StateMigrationError: The column can't become what the serializer stores.
        CheckpointCorruptedError: Nobody can tell how it was stored.
    """
    how = stored_in(field, name)
    compatibility = serializer.compatibility(how, field.type)
    reason = compatibility.reason
    if compatibility.outcome is not Outcome.INCOMPATIBLE:
        try:
            return compatibility.migrate(stored)
        except pa.ArrowException as error:
            raise_shortage(error)
            reason = "Arrow can't do this"
        except NoWayError as error:  # of the values
            reason = str(error)
    message = (
        f"state {name!r} is stored with type {how.name}, but type {serializer.name} is asked "
        f"for: {reason}"
    )
    raise StateMigrationError(message)
