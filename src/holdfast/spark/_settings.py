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
    check_job_id,
)

PREFIX = "spark.holdfast."

# One for the process: a query that is stopped and started again finds its checkpoints.
_MEMORY = MemoryCheckpointStorage()

_SIZE = re.compile(r"([0-9]+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

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
    """

    key: str
    kind: str
    meaning: str
    flink: str
    parse: Callable[[str], Any]
    default_text: str | None = None


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
    return field(default=default, metadata={"setting": Setting(**columns)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one query; values only, so that they print, compare and pickle."""

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

    @classmethod
    def parse(cls, configuration: Mapping[str, str]) -> "Settings":
        """Read the settings from Spark's configuration; other keys are passed over.

        Raises:
            InvalidRequestError: An unknown `spark.holdfast.` key, or a value of another kind.
        """
        by_key = {PREFIX + one.metadata["setting"].key: one for one in fields(cls)}
        values = {}
        for key, text in configuration.items():
            if not key.startswith(PREFIX):
                continue
            if key not in by_key:
                nearest = difflib.get_close_matches(key, by_key, n=1, cutoff=0.0)[0]
                raise InvalidRequestError(f"no setting {key!r}; did you mean {nearest!r}?")
            setting: Setting = by_key[key].metadata["setting"]
            try:
                values[by_key[key].name] = setting.parse(text.strip())
            except InvalidRequestError:
                raise
            except ValueError as error:
                message = f"setting {key!r} is {text!r}; it must be a {setting.kind}"
                raise InvalidRequestError(message) from error
        return cls(**values)

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


def settings_table() -> list[tuple[Setting, Any]]:
    """Every setting with its default, in the order of the docs."""
    return [(one.metadata["setting"], one.default) for one in fields(Settings)]
