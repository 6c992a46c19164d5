"""The part of a URI that may be shown: nothing that may be a secret gets into errors, logs and metadata.

    s3://KEY:SECRET@bucket/path            a secret stands before an @
    abfs://container@account?sig=SECRET/x  or behind a ?

Neither belongs into a location. These are no secrets, and are shown whole:

    abfs://container@account/path   sftp://user@host/path     a container or user, without a colon
    hdfs://host:8020/a@b            s3://bucket/a@b           an @ in the path
    file:///a?b                                               a ? in a path on a local disk

Of anything else nothing is shown between the scheme and the last @, nor behind a ?. What is no URI has no
scheme that could be told from a secret, so it is shown from its last @ on.
"""

import re

URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/]*))?(?P<path>.*)", re.DOTALL
)

_HEAD = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")

_WITHOUT_USERS = frozenset({"file", "s3", "s3a", "gs", "gcs"})
"""Schemes whose authority is a bucket, or nothing."""


def shown(uri: str) -> str:
    """A URI as it may be shown; what was cut already stays as it is."""
    parts = URI.fullmatch(uri)
    is_whole = parts is not None and parts["path"][:1] in ("", "/")
    if parts is not None and is_whole and not has_password(parts) and not has_query(parts):
        return uri
    head = _HEAD.match(uri)
    rest = uri if head is None else uri[head.end() :]
    before, at, behind = rest.rpartition("@")
    name, mark, _ = behind.partition("?")
    if not at and not mark:
        return uri
    scheme = "" if head is None else f"{head[1].lower()}://"
    if "?" in before:  # whichever of the two it is
        return f"{scheme}…"
    return f"{scheme}{at and '…@'}{name}{mark and '?…'}"


def has_password(parts: re.Match[str]) -> bool:
    """Whether a URI that `URI` matches has a password in it, or what can only be one."""
    scheme, authority, path = _scheme(parts), parts["authority"] or "", parts["path"]
    user, at, host = authority.rpartition("@")
    if ":" in user or (at and scheme in _WITHOUT_USERS):
        return True
    if "@" not in path:
        return False
    if scheme == "file":
        return authority not in ("", "localhost")
    if not authority:  # a slash too many
        return ":" in path.rpartition("@")[0] or scheme in _WITHOUT_USERS
    port = re.search(r":([^:\]]*)\Z", host)  # a secret with slashes in it begins where a port does
    return port is not None and (scheme in _WITHOUT_USERS or not port[1].isdecimal())


def has_query(parts: re.Match[str]) -> bool:
    """Whether a URI that `URI` matches has a query, or what would be one elsewhere."""
    return "?" in (parts["authority"] or "") or (_scheme(parts) != "file" and "?" in parts["path"])


def _scheme(parts: re.Match[str]) -> str:
    return parts["scheme"].lower().removeprefix("fsspec+")
