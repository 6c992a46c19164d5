"""How a location is told to tasks: four bytes that mark our references, then a URI."""

from holdfast.errors import InvalidRequestError
from holdfast.locations.storages.contract import CheckpointStorageLocationReference

# Tells references from garbage; Flink uses the same four bytes before a path.
_MAGIC = b"\x05\x5f\x3f\x18"


def encode_reference(prefix: str) -> CheckpointStorageLocationReference:
    """The reference to a location whose files begin with a prefix, a URI."""
    return CheckpointStorageLocationReference(_MAGIC + prefix.encode())


def decode_reference(reference: CheckpointStorageLocationReference) -> str:
    """The prefix that a reference names.

    Raises:
        InvalidRequestError: The reference is the default reference, or garbled.
    """
    encoded = reference.encoded
    if not encoded.startswith(_MAGIC) or len(encoded) == len(_MAGIC):
        raise InvalidRequestError(f"not a location reference: {encoded[:64].hex()}")
    try:
        return encoded.removeprefix(_MAGIC).decode()
    except UnicodeDecodeError as error:
        message = f"location reference is no valid path: {encoded[:64].hex()}"
        raise InvalidRequestError(message) from error
