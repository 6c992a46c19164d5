"""Names and places of the files of checkpoints. Pure, no I/O.

    <directory>/<job>/chk-<N>/_metadata      the commit marker, written last
    <directory>/<job>/chk-<N>/<attempt>-<…>  exclusive state files, of one attempt at checkpoint N
    <directory>/<job>/shared/<attempt>-<…>   state files that several checkpoints refer to
    <directory>/<job>/_epoch/<n>             the owner of the job
    <directory>/<job>/_epoch/_lease-<N>-<…>  a reader of checkpoint N
    <directory>/<job>/_epoch/_driver-<t>…    the active driver of a job with standbys
    <savepoints>/savepoint-<job>-<random>/   a savepoint: all its files, and its `_metadata`

Object stores partition by prefix. If the directory ends with `_entropy_`, state files get random characters there:

    s3://bucket/holdfast/_entropy_               the directory that the user names
    s3://bucket/holdfast/job/chk-7/_metadata     files with known names are where they would be without the marker
    s3://bucket/holdfast/.a3/job/chk-7/…         a state file is in one of 256 directories

The two digits are the first ones of the file's random name. Their number is fixed, so that a sweep can list all of these
directories. The dot keeps them apart from jobs, whose ids never start with a dot. A checkpoint directory must not
have such a part itself, or its files could not be distinguished from those of another checkpoint.

`_metadata` names files, and retention, claims, copies and restores follow these names. So a name that leads to
anything but a state file is damage, even if all checksums are right:

- a file in the directory of `_metadata` is part of the checkpoint;
- any other one has the random name of a state file;
- a checkpoint `<job>/chk-<N>` has it in `<job>/shared` or in a `<job>/chk-<M>`, or it came with a checkpoint that the
  job has claimed. The path before `<job>` may differ, because a store can be reached under several schemes and paths;
- files that came with a claimed checkpoint are in its directory, or in the `shared` next to it.

Files are deleted only by stricter rules: of a checkpoint in its own job's directory, spelled as the job spells
it, and of a claim in the claimed one.

Source:
    Flink, EntropyInjector; there the marker and the number of characters are settings, 4 by default, the
    marker may be anywhere in the path, and orphaned files stay forever. Delta Lake has two characters, too.
"""

import re

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import files_of, is_inside
from holdfast.locations.metadata import CheckpointMetadata

METADATA_FILE = "_metadata"
SHARED = "shared"
EPOCHS = "_epoch"
MARKER = "_entropy_"

CHECKPOINT = re.compile(r"chk-(0|[1-9][0-9]*)")
JOB_ID = re.compile(rf"(?!{MARKER}\Z)[A-Za-z0-9_-][A-Za-z0-9._-]{{0,127}}")
"""Job ids: names of directories in every store, except for the marker."""

STATE_FILE = re.compile(r"(?:[0-9a-f]{8}-)?[0-9a-f]{32}")
"""Names of state files: the digits of the attempt that wrote it, if any, and random ones."""

LEASE = re.compile(r"_lease-(?P<checkpoint>0|[1-9][0-9]*)-(?P<seconds>[0-9]{1,9})-[0-9a-f]{32}")
"""Names of readers' leases, next to the epochs."""

DRIVER = re.compile(r"_driver-(?P<term>[1-9][0-9]*)(?:-(?P<sign>[1-9][0-9]*|ended|released))?")
"""Names of the files of active drivers, next to the epochs: terms, heartbeats and ends."""

SAVEPOINT_NAME = re.compile(rf"savepoint-(?P<job>{JOB_ID.pattern})-[0-9a-f]{{12}}")

LEAVE_OUT = f"leave {MARKER} out"

_RANDOM = re.compile(r"\.[0-9a-f]{2}")
_RANDOM_ABOVE_JOB = re.compile(rf"/{_RANDOM.pattern}(?=(?:/[^/]+){{3}}\Z)")
_DIRECTORIES = 256


def check_checkpoint_id(checkpoint_id: int) -> None:
    """Refuse an id that is negative or not an int. Raises `InvalidRequestError`."""
    if type(checkpoint_id) is not int:
        raise InvalidRequestError(f"checkpoint id must be an int, got {checkpoint_id!r}")
    if checkpoint_id < 0:
        raise InvalidRequestError(f"checkpoint id must be >= 0, got {checkpoint_id}")


def check_job_id(job_id: str) -> str:
    """Refuse an id that can't be the name of a directory in every store. Raises `InvalidRequestError`."""
    if not JOB_ID.fullmatch(job_id):
        message = (
            f"job id {job_id!r} can't name a directory; use 1 to 128 letters, digits, '.', '_' or "
            f"'-' that don't start with '.' and are not {MARKER!r}"
        )
        raise InvalidRequestError(message, kind="setting")
    return job_id


def is_checkpoint(directory: str) -> bool:
    """Return whether a directory has the name of a job's checkpoint."""
    return CHECKPOINT.fullmatch(uripath.name(directory)) is not None


def checkpoint_id_of(directory: str) -> int:
    """Return the id in the name of a checkpoint's directory; see `is_checkpoint`."""
    return int(uripath.name(directory).removeprefix("chk-"))


def is_dedicated(directory: str) -> bool:
    """Return whether a directory was created for one checkpoint or savepoint, so that it can be deleted whole.

    A copied checkpoint may be in a directory with other files.
    """
    return is_checkpoint(directory) or SAVEPOINT_NAME.fullmatch(uripath.name(directory)) is not None


def check_marker(directory: str) -> str:
    """Refuse a checkpoint directory with an invalid marker.

    Raises:
        InvalidRequestError: The marker is not the last part, is only a part of a name, is on a local
            disk, or is the whole path; or a part of the directory looks like its replacement.
    """
    *parts, last = directory.split("/")
    if last != MARKER:
        parts.append(last)
    for part in parts:
        if _RANDOM.fullmatch(part):
            message = f"{part!r} in the path is a replacement of {MARKER}; give that directory another name"
            raise InvalidRequestError(message, directory, kind="location")
    if uripath.scheme(directory) == "file":
        return refuse_marker(directory, "disks don't partition by prefix")
    # In the middle of a name, as in cross_entropy_loss, it is a part of the name.
    if any(part.startswith(MARKER) or part.endswith(MARKER) for part in parts):
        message = f"{MARKER} must be the last part of the directory, after a slash"
        raise InvalidRequestError(message, directory, kind="location")
    uripath.checkpoint_directory(without_marker(directory))
    return directory


def refuse_marker(directory: str, reason: str) -> str:
    """Refuse the marker in a place that has no use for it. Raises `InvalidRequestError`."""
    if has_marker(directory):
        raise InvalidRequestError(f"{reason}; {LEAVE_OUT}", directory, kind="location")
    return directory


def has_marker(uri: str) -> bool:
    """Return whether a URI has the marker as a part."""
    return f"/{MARKER}/" in f"{uri}/"


def without_marker(uri: str) -> str:
    """Return the place of files with known names."""
    return f"{uri}/".replace(f"/{MARKER}/", "/", 1).removesuffix("/")


def inject_entropy(uri: str, name: str) -> str:
    """Replace the marker above a job by digits of a file's random name."""
    return uri.replace(f"/{MARKER}/", f"/.{name[:2]}/", 1)


def entropy_paths(uri: str) -> list[str]:
    """Return all paths of a job's directory; only the directory itself if it has no marker."""
    if not has_marker(uri):
        return [uri]
    return [inject_entropy(uri, f"{number:02x}") for number in range(_DIRECTORIES)]


def entropy_root(uri: str) -> str:
    """Return the directory with all of `entropy_paths` below it."""
    return uri.partition(f"/{MARKER}/")[0]


def is_file_of(uri: str, directory: str) -> bool:
    """Return whether a state file is directly in a job's directory, or in one of its `entropy_paths`."""
    without_entropy = _RANDOM_ABOVE_JOB.sub("", uri)
    return directory in (uripath.parent(uri), uripath.parent(without_entropy))


def is_state_file(uri: str) -> bool:
    """Return whether a URI has the form and the name of a state file."""
    return STATE_FILE.fullmatch(uripath.name(uri)) is not None and uripath.is_normalized(uri)


def belongs_to(uri: str, pointer: str) -> bool:
    """Return whether a job that claims the checkpoint or savepoint in a directory gets a state file with it."""
    shared = uripath.join(uripath.parent(pointer), SHARED)
    return is_state_file(uri) and (
        is_file_of(uri, pointer) or (is_checkpoint(pointer) and is_file_of(uri, shared))
    )


def location_mismatch(metadata: CheckpointMetadata, directory: str) -> str | None:
    """Describe a contradiction between metadata and the name of its directory, or return None.

    `<job>/chk-<N>` identifies a checkpoint. Savepoints and copies may have any other name.
    """
    matched = CHECKPOINT.fullmatch(uripath.name(directory))
    if matched is None:
        return None
    job_id, checkpoint_id = uripath.name(uripath.parent(directory)), int(matched[1])
    if (metadata.job_id, metadata.checkpoint_id) == (job_id, checkpoint_id):
        return None
    return (
        f"metadata is of checkpoint {metadata.checkpoint_id} of job {metadata.job_id!r}, and its "
        f"directory of checkpoint {checkpoint_id} of job {job_id!r}"
    )


def find_stray_file(metadata: CheckpointMetadata, directory: str) -> str | None:
    """Return the first URI in metadata that can't be that of a file of the checkpoint in its directory, or None."""
    claimed: set[str] = set()
    for claim in metadata.claimed:
        if not uripath.is_normalized(claim.pointer) or uripath.local_path(claim.pointer) == "/":
            return claim.pointer
        for uri in claim.files:
            if not belongs_to(uri, claim.pointer):
                return uri
        claimed.update(claim.files)
    for file in files_of(metadata.streams()):
        if (
            not is_inside(file, directory)
            and file.uri not in claimed
            and not (is_state_file(file.uri) and _is_of_job(file.uri, metadata, directory))
        ):
            return file.uri
    return None


def _is_of_job(uri: str, metadata: CheckpointMetadata, directory: str) -> bool:
    """Return whether a file is in a directory of the checkpoint's job; savepoints may refer to any other."""
    if not is_checkpoint(directory):
        return True
    parent = uripath.parent(uri)
    job = uripath.name(uripath.parent(parent))
    return job == metadata.job_id and (uripath.name(parent) == SHARED or is_checkpoint(parent))
