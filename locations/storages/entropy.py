"""Random characters in the paths of state files, for object stores that partition by prefix.

    s3://bucket/holdfast/_entropy_               what the user names
    s3://bucket/holdfast/job/chk-7/_metadata     whatever is looked for by its name: no marker
    s3://bucket/holdfast/.a3/job/chk-7/…         a state file: one of 256 directories instead of it

The two digits are the first ones of the file's own random name. There are no more of them, and their
number can't be set, so that whoever looks for files that nobody knows of by name can list all of these
directories. The dot keeps them apart from jobs, whose ids never begin with one. No checkpoint directory
has such a part itself, or files of a checkpoint could be taken for those of another one.

Source:
    Flink, EntropyInjector; there the marker and the number of characters are set, 4 by default, and
    what nobody knows of by name stays for ever. Two are what Delta Lake takes.
"""

import re
from collections.abc import Iterator

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError

MARKER = "_entropy_"
LEAVE_OUT = f"leave {MARKER} out"

_RANDOM = re.compile(r"\.[0-9a-f]{2}")
_DIRECTORIES = 256


def check_marker(directory: str) -> str:
    """Refuse a checkpoint directory in which the marker can't mean what it should.

    Raises:
        InvalidRequestError: It is a part of a longer name, is there twice, or on a local disk, or
            nothing is left without it; or a part of the directory looks like what replaces it.
    """
    _, names = _split(directory)
    for one in names:
        if _RANDOM.fullmatch(one):
            message = (
                f"{one!r} in the path is what {MARKER} becomes; give that directory another name"
            )
            raise InvalidRequestError(message, directory)
    if uripath.scheme(directory) == "file":
        refuse_marker(directory, "disks don't partition by prefix")
        return directory
    # In the middle of a name, as in cross_entropy_loss, it is a name.
    if any(one != MARKER and (one.startswith(MARKER) or one.endswith(MARKER)) for one in names):
        message = f"{MARKER} must be a whole part of the path, between two slashes"
        raise InvalidRequestError(message, directory)
    if names.count(MARKER) > 1:
        raise InvalidRequestError(f"{MARKER} is there twice; once is enough", directory)
    uripath.checkpoint_directory(without_marker(directory))
    return directory


def refuse_marker(directory: str, reason: str) -> str:
    """Refuse the marker where there is nothing to spread. Raises `InvalidRequestError`."""
    if has_marker(directory):
        raise InvalidRequestError(f"{reason}; {LEAVE_OUT}", directory)
    return directory


def has_marker(uri: str) -> bool:
    """Whether files below it are to be spread."""
    return MARKER in _split(uri)[1]


def without_marker(uri: str) -> str:
    """Where things are that are looked for by name."""
    head, names = _split(uri)
    if MARKER in names:
        names.remove(MARKER)  # the first
    return head + ("/".join(names) or "/")


def spread(uri: str, name: str) -> str:
    """Where the file of that random name is, of those that are spread below a directory."""
    head, names = _split(uri)
    if MARKER in names:
        names[names.index(MARKER)] = f".{name[:2]}"
    return head + "/".join(names)


def spread_everywhere(uri: str) -> list[str]:
    """All directories that a directory is spread over; itself if it is not."""
    if not has_marker(uri):
        return [uri]
    return [spread(uri, f"{number:02x}") for number in range(_DIRECTORIES)]


def common_directory(uri: str) -> str:
    """The directory below which all of these are."""
    head, names = _split(uri)
    return head + ("/".join(names[: names.index(MARKER)]) or "/") if MARKER in names else uri


def lies_in(uri: str, directory: str) -> bool:
    """Whether a file lies directly in a directory, spread or not."""
    return directory in _without_random(uripath.parent(uri))


def is_below(uri: str, directory: str) -> bool:
    """Whether a file lies somewhere below a directory, spread or not."""
    return any(one.startswith(f"{directory}/") for one in _without_random(uri))


def _without_random(uri: str) -> Iterator[str]:
    """The URI itself, and what it may have been spread from."""
    yield uri
    head, names = _split(uri)
    for index, name in enumerate(names):
        if _RANDOM.fullmatch(name):
            yield head + "/".join(names[:index] + names[index + 1 :])


def _split(uri: str) -> tuple[str, list[str]]:
    """Scheme and authority, and the names in the path; the first is empty."""
    path = uripath.local_path(uri)
    return uri.removesuffix(path), path.split("/")
