"""Random characters in the paths of state files, for object stores that partition by prefix.

    s3://bucket/holdfast/_entropy_               what the user names: the marker is the last part
    s3://bucket/holdfast/job/chk-7/_metadata     what is looked for by its name stands where it would without
    s3://bucket/holdfast/.a3/job/chk-7/…         a state file: it is in one of 256 directories

The two digits are the first ones of the file's own random name. There are no more of them, and their
number can't be set, so that whoever looks for files whose names nobody knows can list all of these
directories. The dot keeps them apart from jobs, whose ids never begin with a dot. No checkpoint directory
has such a part itself, or its files could not be told from those of another checkpoint.

Source:
    Flink, EntropyInjector; there the marker and the number of characters are set, 4 by default, the
    marker may stand anywhere, and files whose names nobody knows stay for ever. Delta Lake has two
    characters, too.
"""

import re

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError

MARKER = "_entropy_"
LEAVE_OUT = f"leave {MARKER} out"

_RANDOM = re.compile(r"\.[0-9a-f]{2}")
_RANDOM_ABOVE_JOB = re.compile(rf"/{_RANDOM.pattern}(?=(?:/[^/]+){{3}}\Z)")
_DIRECTORIES = 256


def check_marker(directory: str) -> str:
    """Refuse a checkpoint directory in which the marker can't mean what it should.

    Raises:
        InvalidRequestError: The marker is not the last part, or only a piece of a name, or on a local
            disk, or nothing is left without it; or a part of the directory looks like what replaces it.
    """
    *parts, last = directory.split("/")
    if last != MARKER:
        parts.append(last)
    for part in parts:
        if _RANDOM.fullmatch(part):
            message = (
                f"{part!r} in the path is what {MARKER} becomes; give that directory another name"
            )
            raise InvalidRequestError(message, directory)
    if uripath.scheme(directory) == "file":
        return refuse_marker(directory, "disks don't partition by prefix")
    # In the middle of a name, as in cross_entropy_loss, it belongs to the name.
    if any(part.startswith(MARKER) or part.endswith(MARKER) for part in parts):
        message = f"{MARKER} must be the last part of the directory, behind a slash, and there once"
        raise InvalidRequestError(message, directory)
    uripath.checkpoint_directory(without_marker(directory))
    return directory


def refuse_marker(directory: str, reason: str) -> str:
    """Refuse the marker where there is nothing to spread. Raises `InvalidRequestError`."""
    if has_marker(directory):
        raise InvalidRequestError(f"{reason}; {LEAVE_OUT}", directory)
    return directory


def has_marker(uri: str) -> bool:
    """Whether files below a URI are to be spread."""
    return f"/{MARKER}/" in f"{uri}/"


def without_marker(uri: str) -> str:
    """The place of everything that is looked for by its name."""
    return f"{uri}/".replace(f"/{MARKER}/", "/", 1).removesuffix("/")


def spread(uri: str, name: str) -> str:
    """Replace the marker above a job by digits of the random name of a file."""
    return uri.replace(f"/{MARKER}/", f"/.{name[:2]}/", 1)


def spread_everywhere(uri: str) -> list[str]:
    """All directories that a directory of a job is spread over; itself if it is not."""
    if not has_marker(uri):
        return [uri]
    return [spread(uri, f"{number:02x}") for number in range(_DIRECTORIES)]


def common_directory(uri: str) -> str:
    """The directory below which all of these are."""
    return uri.partition(f"/{MARKER}/")[0]


def lies_in(uri: str, directory: str) -> bool:
    """Whether a state file lies directly in the directory of a checkpoint, spread or not."""
    return directory in (uripath.parent(uri), uripath.parent(_without_random(uri)))


def _without_random(uri: str) -> str:
    """Where a state file would be if it was not spread: `<job>/<chk-N or shared>/<file>` follow."""
    return _RANDOM_ABOVE_JOB.sub("", uri)
