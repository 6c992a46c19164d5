"""How `_metadata` names files: those near it by relative URIs, so that directories can be moved.

name                 a file beside `_metadata`
../savepoint-x/name  a file of a savepoint beside the savepoint that `_metadata` is of
s3://bucket/name     any other file
"""

from holdfast.common import uripath
from holdfast.errors import CheckpointCorruptedError
from holdfast.redaction import shown

_BESIDE = ".."
_SAVEPOINT = "savepoint-"


def relative_uri(uri: str, directory: str) -> str:
    """A file's URI as it stands in the `_metadata` of a directory."""
    holder = uripath.parent(uri)
    if holder == directory:
        return uripath.name(uri)
    if _are_savepoints_side_by_side(holder, directory):
        return uripath.join(_BESIDE, uripath.name(holder), uripath.name(uri))
    return uri


def absolute_uri(uri: str, directory: str) -> str:
    """Resolve the URI of a file that the `_metadata` in a directory names.

    Raises:
        CheckpointCorruptedError: The URI has another form than `relative_uri` writes, such as one
            with `..` in it, which leads somewhere else than it seems to.
    """
    holder, _, name = uri.removeprefix(f"{_BESIDE}/").rpartition("/")
    if uri == name:
        resolved = uripath.join(directory, name)
    elif uri.startswith(f"{_BESIDE}/{_SAVEPOINT}") and "/" not in holder:
        resolved = uripath.join(uripath.parent(directory), holder, name)
    else:
        resolved = uri
    if not name or not uripath.is_normalized(resolved):
        message = f"metadata names a file {shown(uri)!a}, which is not a valid location of a file"
        raise CheckpointCorruptedError(message, directory)
    return resolved


def _are_savepoints_side_by_side(directory: str, other: str) -> bool:
    names = (uripath.name(directory), uripath.name(other))
    return uripath.parent(directory) == uripath.parent(other) and all(
        name.startswith(_SAVEPOINT) for name in names
    )
