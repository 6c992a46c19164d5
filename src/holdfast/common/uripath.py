"""URIs of files and directories: plain text, as Hadoop writes it; nothing is percent-decoded."""

import os
import posixpath
import unicodedata
import uuid

from holdfast.errors import InvalidRequestError
from holdfast.redaction import URI, has_password, has_query

_MAX_KEY_BYTES = 1024
_OBJECT_STORES = {"s3": "S3", "s3a": "S3", "gs": "Google Cloud Storage"} | dict.fromkeys(
    ("az", "abfs", "abfss"), "Azure Storage"
)

_TAKE_ANY = frozenset({"file", "memory"})

NO_SCHEME = "location has no scheme; write file:///path for a local one"


def normalize(uri: str | os.PathLike[str]) -> str:
    """Return a location in its canonical form, `scheme://authority/path`.

    Args:
        uri: A URI, or a `pathlib.Path` (taken as a local file, made absolute).

    Returns:
        The URI with a lower-case scheme, without `.`, `..`, doubled or trailing slashes.

    Raises:
        InvalidRequestError: The URI has no scheme, has a password or query, its path is not absolute, or the
            store can't have files under it.
    """
    uri = text(uri)
    parts = URI.fullmatch(uri)
    if parts is None:
        raise InvalidRequestError(NO_SCHEME, uri, kind="location")
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in uri):
        raise InvalidRequestError(
            "location has a character that no store accepts", ascii(uri), kind="location"
        )
    scheme, authority, path = parts["scheme"].lower(), parts["authority"] or "", parts["path"]
    refuse_password(uri)
    if has_query(parts):
        message = (
            "location has a query ('?'), which could contain a secret; configure secrets in the store's "
            "own configuration and name the directory without a query"
        )
        raise InvalidRequestError(message, uri, kind="location")
    if scheme == "file" and authority not in ("", "localhost"):
        message = f"local location names a host, {authority!r}; write file:/// with three slashes"
        raise InvalidRequestError(message, uri, kind="location")
    if path and not path.startswith("/"):
        raise InvalidRequestError("path of the location must be absolute", uri, kind="location")
    _refuse_unstorable(scheme.removeprefix("fsspec+"), path, uri)
    if scheme == "file":
        authority = ""
    # normpath keeps two leading slashes, as POSIX allows
    return f"{scheme}://{authority}/{posixpath.normpath(path or '/').lstrip('/')}"


def _refuse_unstorable(scheme: str, path: str, uri: str) -> None:
    """Refuse a path that a store does not support, or rejects with a misleading error.

    Local disks take every character but NUL, and report a name that is too long.
    """
    if scheme in _TAKE_ANY:
        return
    for character in path:
        if unicodedata.category(character) == "Cc" or character in "\ufffe\uffff":
            message = (
                f"location has the character {character!a} in its path, which {scheme}:// can't have in "
                "names; use another name"
            )
            raise InvalidRequestError(message, ascii(uri), kind="location")
    if scheme in ("hdfs", "viewfs") and ":" in path:
        message = "location has a ':' in its path, which HDFS can't have in names; use another name"
        raise InvalidRequestError(message, uri, kind="location")
    length = len(path.encode())
    if scheme in _OBJECT_STORES and length > _MAX_KEY_BYTES:
        store = _OBJECT_STORES[scheme]
        message = f"location's path has {length} bytes, and {store} takes at most {_MAX_KEY_BYTES}"
        raise InvalidRequestError(message, uri, kind="location")


def is_normalized(uri: str) -> bool:
    """Check that a location is in the form that `normalize` returns."""
    try:
        return normalize(uri) == uri
    except InvalidRequestError:
        return False


def is_path_below(path: str) -> bool:
    """Check that a relative path stays below the directory that it is joined to."""
    return bool(path) and is_normalized(f"file:///{path}")


def refuse_password(uri: str) -> None:
    """Raise `InvalidRequestError` if a URI, or a string meant to be one, contains a password."""
    parts = URI.fullmatch(uri)
    if has_password(parts) if parts else "@" in uri:
        message = (
            "location has a password in it, and locations are written to logs and metadata; "
            "configure it in the store's own configuration"
        )
        raise InvalidRequestError(message, uri, kind="location")


def text(uri: str | os.PathLike[str]) -> str:
    """Return a URI unchanged, or the URI of a local path, made absolute."""
    return uri if isinstance(uri, str) else f"file://{os.path.abspath(uri)}"


def checkpoint_directory(uri: str | os.PathLike[str]) -> str:
    """Normalize the URI of a directory for checkpoints.

    Raises:
        InvalidRequestError: No scheme, no path, or the root of a file system.

    Source:
        Flink, AbstractFileStateBackend.validatePath: the same three cases.
    """
    directory = normalize(uri)
    if local_path(directory) == "/":
        message = "the root directory can't be used for checkpoints; name a directory below it"
        raise InvalidRequestError(message, os.fspath(uri), kind="location")
    return directory


def scheme(uri: str) -> str:
    """The part of a normalized URI before `://`."""
    return uri.partition("://")[0]


def local_path(uri: str) -> str:
    """The absolute path of a normalized URI, without scheme and authority."""
    return "/" + uri.partition("://")[2].partition("/")[2]


def join(directory: str, *names: str) -> str:
    """The URI of a file or directory below a directory."""
    return "/".join((directory.removesuffix("/"), *names)) if names else directory


def parent(uri: str) -> str:
    """The directory that holds the file or directory."""
    head = uri.rpartition("/")[0]
    # A root keeps its slash.
    return head if "/" in head.partition("://")[2] else f"{head}/"


def name(uri: str) -> str:
    """The last part of the URI's path."""
    return uri.rpartition("/")[2]


def hidden_name(name: str) -> str:
    """A temporary name for a file that gets this name once it is complete; the sweep recognises such names."""
    return f".{name}.{uuid.uuid4().hex}.inprogress"
