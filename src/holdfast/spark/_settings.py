"""The `spark.holdfast.*` settings: one table, read from a session, printed into the docs."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from holdfast.errors import InvalidRequestError
from holdfast.locations import (
    GRACE_S,
    INLINE_THRESHOLD_BYTES,
    MAX_INLINE_THRESHOLD_BYTES,
    CheckpointStorage,
    FileSystemCheckpointStorage,
    MemoryCheckpointStorage,
    S3Settings,
    check_job_id,
)

PREFIX = "spark.holdfast."
_S3A = "spark.hadoop.fs.s3a."
_CREDENTIALS = ("s3.access-key", "s3.secret-key", "s3.session-token", "s3.assumed-role")

# One for the process: a query that is stopped and started again finds its checkpoints.
_MEMORY = MemoryCheckpointStorage()

_SIZE = re.compile(r"([0-9]+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

# S3's names, and Hadoop's for the same.
_ENCRYPTIONS = {
    "AES256": "AES256",
    "SSE-S3": "AES256",
    "AWS:KMS": "aws:kms",
    "SSE-KMS": "aws:kms",
}

_LEAST_GRACE_S = 600.0

_DURATION = re.compile(r"([0-9]+)\s*(s|m|min|h|d)", re.IGNORECASE)
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Attributes:
        key: Spark configuration key without `spark.holdfast.`.
        kind: What its text has to be, for people.
        meaning: What it does, for people.
        flink: Flink's key for the same, or empty.
        parse: Makes a value of its text; raises ValueError or `InvalidRequestError`.
        default_text: The default as one would write it, where that is not its value.
        s3a: Hadoop's key for the same, behind `spark.hadoop.fs.s3a.`, which is taken where this one
            is not set; or empty.
    """

    key: str
    kind: str
    meaning: str
    flink: str
    parse: Callable[[str], Any]
    default_text: str | None = None
    s3a: str = ""


def _storage(text: str) -> str:
    kind = {"filesystem": "filesystem", "memory": "memory", "jobmanager": "memory"}.get(
        text.lower()
    )
    if kind is None:
        raise ValueError(text)
    return kind


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return int(found[1]) * _UNITS[found[2].lower()]


def _duration_s(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return int(found[1]) * _SECONDS[found[2].lower()]


def _endpoint(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError(text)
    return text


def _encryption(text: str) -> str:
    if text.upper() not in _ENCRYPTIONS:
        raise ValueError(text)
    return _ENCRYPTIONS[text.upper()]


def _grace_s(text: str) -> float:
    seconds = _duration_s(text)
    if seconds < _LEAST_GRACE_S:  # the sweep runs beside the first batch
        raise ValueError(text)
    return seconds


def _boolean(text: str) -> bool:
    found = {"true": True, "false": False}.get(text.lower())
    if found is None:
        raise ValueError(text)
    return found


def _threshold(text: str) -> int:
    size = _size(text)
    if size > MAX_INLINE_THRESHOLD_BYTES:
        raise ValueError(text)
    return size


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(text)
    return int(text)


def _setting(default: Any, **columns: Any) -> Any:
    setting = Setting(**columns)
    return field(default=default, metadata={"setting": setting}, repr=setting.kind != "secret")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one query; values only, so that they compare and pickle."""

    checkpoint_dir: str | None = _setting(
        None,
        key="checkpoint.dir",
        kind="URI",
        meaning="Directory below which every job keeps its checkpoints. "
        "Needed unless the storage is `memory`.",
        flink="execution.checkpointing.dir",
        parse=str,
    )
    checkpoint_storage: str = _setting(
        "filesystem",
        key="checkpoint.storage",
        kind="`filesystem` or `memory`",
        meaning="`memory` keeps state of at most 5 MiB a subtask in `_metadata` files in the "
        "checkpoint directory; without one, in the driver, where it is lost with it (for tests). "
        "Flink's name for it, `jobmanager`, is understood too.",
        flink="execution.checkpointing.storage",
        parse=_storage,
    )
    num_retained: int = _setting(
        1,
        key="checkpoint.num-retained",
        kind="number, at least 1",
        meaning="How many completed checkpoints are kept; older ones are deleted.",
        flink="execution.checkpointing.num-retained",
        parse=_positive,
    )
    single_writer: bool = _setting(
        default=False,
        key="checkpoint.single-writer",
        kind="`true` or `false`",
        meaning="The promise that never more than one driver at a time runs a job. Stores need "
        "it that can't create a file only if it is not there yet, such as `sftp://`.",
        flink="",
        parse=_boolean,
        default_text="false",
    )
    orphan_grace_s: float = _setting(
        GRACE_S,
        key="cleanup.orphan-grace",
        kind="duration such as `24h` or `90m`, at least `10m`",
        meaning="How long a file that no checkpoint leads to is left alone, by the store's clock. "
        "When a query starts it deletes older ones, which crashes have left in its job's "
        "directory. Longer than any micro-batch takes.",
        flink="",
        parse=_grace_s,
        default_text="24h",
    )
    inline_threshold: int = _setting(
        INLINE_THRESHOLD_BYTES,
        key="state.inline-threshold",
        kind="size, 0 to 1m",
        meaning="State of at most this size travels in `_metadata` instead of in a file.",
        flink="execution.checkpointing.data-inline-threshold",
        parse=_threshold,
    )
    job_id: str | None = _setting(
        None,
        key="job.id",
        kind="name of a directory",
        meaning="The job's directory below the checkpoint directory. "
        "By default the id that Spark gives to the query.",
        flink="",
        parse=check_job_id,
    )

    s3_endpoint: str | None = _setting(
        None,
        key="s3.endpoint",
        kind="URL with http:// or https://",
        meaning="Where the S3 store is; AWS if not set.",
        flink="s3.endpoint",
        s3a="endpoint",
        parse=_endpoint,
    )
    s3_region: str | None = _setting(
        None,
        key="s3.region",
        kind="name",
        meaning="Region of the S3 store.",
        flink="s3.region",
        s3a="endpoint.region",
        parse=str,
    )
    s3_path_style: bool = _setting(
        default=False,
        key="s3.path-style-access",
        kind="`true` or `false`",
        meaning="Whether the bucket stands in the path of requests instead of in the host name, as "
        "most stores other than AWS want it.",
        flink="s3.path.style.access",
        s3a="path.style.access",
        parse=_boolean,
        default_text="false",
    )
    s3_access_key: str | None = _setting(
        None,
        key="s3.access-key",
        kind="name of credentials",
        meaning="Credentials for S3. Where they are not set, boto3 finds them: in the environment, "
        "its files, or the machine's role.",
        flink="s3.access-key",
        s3a="access.key",
        parse=str,
    )
    s3_secret_key: str | None = _setting(
        None,
        key="s3.secret-key",
        kind="secret",
        meaning="Their secret.",
        flink="s3.secret-key",
        s3a="secret.key",
        parse=str,
    )
    s3_session_token: str | None = _setting(
        None,
        key="s3.session-token",
        kind="secret",
        meaning="The token of temporary ones.",
        flink="",
        s3a="session.token",
        parse=str,
    )
    s3_role_arn: str | None = _setting(
        None,
        key="s3.assumed-role",
        kind="ARN",
        meaning="A role to assume with them.",
        flink="",
        s3a="assumed.role.arn",
        parse=str,
    )
    s3_encryption: str | None = _setting(
        None,
        key="s3.server-side-encryption",
        kind="`AES256` or `aws:kms`",
        meaning="How the store encrypts what is written.",
        flink="s3.sse.type",
        s3a="encryption.algorithm",
        parse=_encryption,
    )
    s3_kms_key_id: str | None = _setting(
        None,
        key="s3.kms-key",
        kind="ARN or id",
        meaning="The key of `aws:kms`, which it implies.",
        flink="s3.sse.kms.keyId",
        s3a="encryption.key",
        parse=str,
    )
    s3_storage_class: str | None = _setting(
        None,
        key="s3.storage-class",
        kind="name",
        meaning="Storage class of what is written.",
        flink="",
        s3a="create.storage.class",
        parse=str.upper,
    )
    s3_checksum: str = _setting(
        "crc32c",
        key="s3.checksum",
        kind="`crc32c`, `crc32` or `off`",
        meaning="What the store is to check uploads by; `off` for stores that know neither. "
        "Holdfast's own checksums are not touched by this.",
        flink="",
        parse=str.lower,
    )
    s3_part_bytes: int = _setting(
        8 << 20,
        key="s3.part-size",
        kind="size, at least 5m",
        meaning="Part of a large file that is sent at a time; grows with the file.",
        flink="s3.upload.min.part.size",
        parse=_size,
        default_text="8m",
    )
    s3_concurrency: int = _setting(
        4,
        key="s3.concurrency",
        kind="number, at least 1",
        meaning="Parts of one file that are sent at a time.",
        flink="s3.upload.max.concurrent.uploads",
        parse=_positive,
    )
    s3_requester_pays: bool = _setting(
        default=False,
        key="s3.requester-pays",
        kind="`true` or `false`",
        meaning="Whether requests are at the cost of the one who makes them.",
        flink="",
        s3a="requester.pays.enabled",
        parse=_boolean,
        default_text="false",
    )
    s3_ca_bundle: str | None = _setting(
        None,
        key="s3.ca-bundle",
        kind="path",
        meaning="File with the certificates to trust, on driver and executors.",
        flink="",
        parse=str,
    )

    @classmethod
    def parse(cls, configuration: Mapping[str, str]) -> "Settings":
        """Read the settings from Spark's configuration; other keys are passed over.

        Raises:
            InvalidRequestError: An unknown `spark.holdfast.` key, or a value of another kind.
        """
        by_key = {PREFIX + one.metadata["setting"].key: one for one in fields(cls)}
        for key in configuration:
            if key.startswith(PREFIX) and key not in by_key:
                nearest = difflib.get_close_matches(key, by_key, n=1, cutoff=0.0)[0]
                raise InvalidRequestError(f"no setting {key!r}; did you mean {nearest!r}?")
        given = {**configuration, **_from_s3a(configuration)}
        values = {
            one.name: _value(key, one.metadata["setting"], given[key])
            for key, one in by_key.items()
            if key in given
        }
        return cls(**values)

    def s3(self) -> S3Settings | None:
        """How to reach S3, if checkpoints go there.

        Raises:
            InvalidRequestError: Some of them don't go together.
        """
        if not is_s3(self.checkpoint_dir or ""):
            return None
        kms_key_id = None if self.s3_encryption == "AES256" else self.s3_kms_key_id
        return S3Settings(
            endpoint_url=self.s3_endpoint,
            region=self.s3_region,
            path_style=self.s3_path_style,
            access_key=self.s3_access_key,
            secret_key=self.s3_secret_key,
            session_token=self.s3_session_token,
            role_arn=self.s3_role_arn,
            server_side_encryption="aws:kms" if kms_key_id else self.s3_encryption,
            kms_key_id=kms_key_id,
            storage_class=self.s3_storage_class,
            checksum=self.s3_checksum,
            part_bytes=self.s3_part_bytes,
            concurrency=self.s3_concurrency,
            requester_pays=self.s3_requester_pays,
            ca_bundle=self.s3_ca_bundle,
        )

    def open_storage(self) -> CheckpointStorage:
        """The checkpoint storage that they describe; touches nothing yet.

        Raises:
            InvalidRequestError: No directory, or one that can't be used.
        """
        if self.checkpoint_storage == "memory" and self.checkpoint_dir is None:
            return _MEMORY
        if self.checkpoint_dir is None:
            message = (
                f"no checkpoint directory is set; set {PREFIX}checkpoint.dir to a URI such as "
                "file:///data/holdfast"
            )
            raise InvalidRequestError(message)
        if self.checkpoint_dir.lower().startswith("memory:"):
            message = (
                f"executors can't reach the driver's memory; set {PREFIX}checkpoint.storage to "
                "memory instead of the directory"
            )
            raise InvalidRequestError(message, self.checkpoint_dir)
        if self.checkpoint_storage == "memory":
            return MemoryCheckpointStorage(
                directory=self.checkpoint_dir, single_writer=self.single_writer
            )
        return FileSystemCheckpointStorage(
            self.checkpoint_dir,
            inline_threshold=self.inline_threshold,
            single_writer=self.single_writer,
        )


def _from_s3a(configuration: Mapping[str, str]) -> dict[str, str]:
    """What Hadoop's settings of S3A say where ours say nothing, for checkpoints in S3.

    Not mixed: who names an endpoint, or credentials, names all of them.
    """
    if not is_s3(configuration.get(f"{PREFIX}checkpoint.dir", "")):
        return {}
    if f"{PREFIX}s3.endpoint" in configuration:
        return {}
    own_credentials = any(f"{PREFIX}{key}" in configuration for key in _CREDENTIALS)
    found = {}
    for setting, _ in settings_table():
        key, value = f"{PREFIX}{setting.key}", configuration.get(f"{_S3A}{setting.s3a}", "").strip()
        is_ours = key in configuration or (own_credentials and setting.key in _CREDENTIALS)
        if setting.s3a and value and not is_ours:
            found[key] = value
    encryption = found.get(f"{PREFIX}s3.server-side-encryption", "").upper()
    if _ENCRYPTIONS.get(encryption) != "aws:kms":
        found.pop(f"{PREFIX}s3.kms-key", None)  # of SSE-C it is the secret itself
    endpoint = found.get(f"{PREFIX}s3.endpoint", "")
    if endpoint and "://" not in endpoint:
        secure = configuration.get(f"{_S3A}connection.ssl.enabled", "true").strip().lower()
        scheme = "http" if secure == "false" else "https"
        found[f"{PREFIX}s3.endpoint"] = f"{scheme}://{endpoint}"
    return found


def is_s3(directory: str) -> bool:
    """Whether a URI is one of S3's."""
    return directory.strip().lower().startswith(("s3:", "s3a:"))


def _value(key: str, setting: Setting, text: str) -> Any:
    try:
        return setting.parse(text.strip())
    except InvalidRequestError:
        raise
    except ValueError as error:
        message = f"setting {key!r} is {text!r}; it must be a {setting.kind}"
        raise InvalidRequestError(message) from error


def settings_table() -> list[tuple[Setting, Any]]:
    """Every setting with its default, in the order of the docs."""
    return [(one.metadata["setting"], one.default) for one in fields(Settings)]
