"""How `_metadata` names files: those near it by relative URIs, so that directories can be moved.

name                 a file beside `_metadata`
../savepoint-x/name  a file of a savepoint beside the savepoint that `_metadata` is of
s3://bucket/name     any other file
"""

from holdfast.common import uripath

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
    """The URI of a file that the `_metadata` in a directory names."""
    if uri.startswith(f"{_BESIDE}/"):
        return uripath.join(uripath.parent(directory), uri.removeprefix(f"{_BESIDE}/"))
    return uri if "/" in uri else uripath.join(directory, uri)


def _are_savepoints_side_by_side(directory: str, other: str) -> bool:
    names = (uripath.name(directory), uripath.name(other))
    return uripath.parent(directory) == uripath.parent(other) and all(
        name.startswith(_SAVEPOINT) for name in names
    )
