"""Redaction of URIs: nothing that may be a secret gets into errors, logs and metadata.

    s3://KEY:SECRET@bucket/path            a secret before an @
    abfs://container@account?sig=SECRET/x  or after a ?

Neither belongs into a location. These are not secrets and stay as they are:

    abfs://container@account/path   sftp://user@host/path     a container or user, without a colon
    hdfs://host:8020/a@b            s3://bucket/a@b           an @ in the path
    file:///a?b                                               a ? in a path on a local disk

Of any other text the part between the scheme and the last @ and the part after a ? are cut. Text that is not a URI has
no scheme that could be distinguished from a secret, so only the part after its last @ remains.
"""

import re

URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/]*))?(?P<path>.*)", re.DOTALL
)

_HEAD = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")

_WITHOUT_USERS = frozenset({"file", "s3", "s3a", "gs", "gcs"})
"""Schemes whose authority is a bucket, or nothing."""


def redact(uri: str) -> str:
    """Return a URI without its secrets; a redacted URI stays as it is."""
    parts = URI.fullmatch(uri)
    is_whole = parts is not None and parts["path"][:1] in ("", "/")
    if parts is not None and is_whole and not has_password(parts) and not has_query(parts):
        return uri
    head = _HEAD.match(uri)
    rest = uri if head is None else uri[head.end() :]
    before, at, after = rest.rpartition("@")
    name, mark, _ = after.partition("?")
    if not at and not mark:
        return uri
    scheme = "" if head is None else f"{head[1].lower()}://"
    if "?" in before:  # it could be part of either
        return f"{scheme}…"
    return f"{scheme}{at and '…@'}{name}{mark and '?…'}"


def has_password(parts: re.Match[str]) -> bool:
    """Return whether a URI that `URI` matches has a password, or text that can only be one."""
    scheme, authority, path = _scheme(parts), parts["authority"] or "", parts["path"]
    user, at, host = authority.rpartition("@")
    if ":" in user or (at and scheme in _WITHOUT_USERS):
        return True
    if "@" not in path:
        return False
    if scheme == "file":
        return authority not in ("", "localhost")
    if not authority:  # one slash too many
        return ":" in path.rpartition("@")[0] or scheme in _WITHOUT_USERS
    port = re.search(r":([^:\]]*)\Z", host)  # a secret with slashes starts where a port does
    return port is not None and (scheme in _WITHOUT_USERS or not port[1].isdecimal())


def has_query(parts: re.Match[str]) -> bool:
    """Return whether a URI that `URI` matches has a query, or text that another scheme takes for one."""
    return "?" in (parts["authority"] or "") or (_scheme(parts) != "file" and "?" in parts["path"])


def _scheme(parts: re.Match[str]) -> str:
    return parts["scheme"].lower().removeprefix("fsspec+")
