"""When two parts of a state are stored in the same way."""

import pyarrow as pa

from holdfast.backends.serializers import stored_in


def are_alike(schema: pa.Schema, other: pa.Schema, state: str) -> bool:
    """Whether what reads columns of the one schema reads those of the other, too.

    A class that has moved or has a new name since is the same type. Where it is pickled it is another
    type, as pickles lead to the class by that name.

    Raises:
        CheckpointCorruptedError: A schema says of its columns what nobody has written.
    """
    if schema.equals(other, check_metadata=True):
        return True
    return schema.equals(other) and all(
        _form(field, state) == _form(twin, state) for field, twin in zip(schema, other, strict=True)
    )


def _form(field: pa.Field, state: str) -> tuple[str, str, str]:
    stored = stored_in(field, state)
    return stored.kind, stored.form, stored.name if stored.kind == "pickle" else ""
