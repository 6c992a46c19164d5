"""The `spark.holdfast.*` settings: one table, read from a session, printed into the docs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

from holdfast.backends.keyed import (
    BACKEND_NAMES,
    MAX_MEMORY_BYTES,
    MIN_MEMORY_BYTES,
    BackendName,
    BlockCompression,
    CompactionStyle,
    RocksDBSettings,
)
from holdfast.backends.snapshot import Compression
from holdfast.common import checkpoint_directory, parse_duration_s
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination import GRACE_S, MIN_GRACE_S
from holdfast.locations.storages import (
    INLINE_THRESHOLD_BYTES,
    MAX_INLINE_THRESHOLD_BYTES,
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobDirectory,
    MemoryCheckpointStorage,
    check_job_id,
)
from holdfast.spark.settings.keys import check_keys
from holdfast.spark.settings.setting import PREFIX, Setting, boolean, positive, size
from holdfast.spark.settings.settings_of_s3 import check_s3_values, s3_settings_table
from holdfast.spark.settings.stores import Stores
from holdfast.spark.settings.tasks_at_a_time import tasks_at_a_time
from holdfast.spark.warm_state import WarmSettings

# One for the process: a query that is stopped and started again finds its checkpoints.
_MEMORY = MemoryCheckpointStorage()


def _storage(text: str) -> str:
    kind = {"filesystem": "filesystem", "memory": "memory", "jobmanager": "memory"}.get(
        text.lower()
    )
    if kind is None:
        raise ValueError(text)
    return kind


def _grace_s(text: str) -> float:
    seconds = parse_duration_s(text)
    if seconds < MIN_GRACE_S:  # the sweep runs beside the first batch
        raise ValueError(text)
    return seconds


def _threshold(text: str) -> int:
    threshold = size(text)
    if threshold > MAX_INLINE_THRESHOLD_BYTES:
        raise ValueError(text)
    return threshold


def _recovery(text: str) -> str:
    if text.lower() not in {"auto", "true", "false"}:
        raise ValueError(text)
    return text.lower()


@dataclass(frozen=True, slots=True)
class StateBackends:
    """The backends of keyed state: of all operators, and of those that have another one, by uid."""

    backend: BackendName = "columnar"
    by_operator: tuple[tuple[str, BackendName], ...] = ()


def _backends(text: str) -> StateBackends:
    by_operator: dict[str, BackendName] = {}  # by the empty uid that of all others
    for item in text.split(","):
        uid, equals, name = (part.strip() for part in item.rpartition("="))
        known = {"hashmap": "heap"}.get(name.lower(), name.lower())
        if known not in BACKEND_NAMES or (equals and not uid):
            raise ValueError(text)
        if uid in by_operator:
            whose = f"operator {uid!r}" if uid else "all operators"
            message = f"{PREFIX}state.backend is {text!r}, with two backends for {whose}; leave one of them"
            raise InvalidRequestError(message)
        by_operator[uid] = known
    usual = by_operator.pop("", "columnar")
    return StateBackends(usual, tuple(by_operator.items()))


def _rocksdb_memory(text: str) -> int:
    memory = size(text)
    if not MIN_MEMORY_BYTES <= memory <= MAX_MEMORY_BYTES:
        raise ValueError(text)
    return memory


def _claim_mode(text: str) -> str:
    mode = text.lower().replace("_", "-")
    if mode not in {"no-claim", "claim"}:
        raise ValueError(text)
    return mode


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share < 1:
        raise ValueError(text)
    return share


def _bits(text: str) -> int:
    bits = float(text)  # Flink's are a number with a fraction
    if not 0 <= bits <= 100:
        raise ValueError(text)
    return round(bits)


def _block_bytes(text: str) -> int:
    count = size(text)
    if not 0 < count <= 1 << 30:  # RocksDB takes no 4 GiB
        raise ValueError(text)
    return count


def _compaction_style(text: str) -> CompactionStyle:
    styles: dict[str, CompactionStyle] = {"level": "level", "universal": "universal"}
    if text.lower() not in styles:
        raise ValueError(text)
    return styles[text.lower()]


def _block_compression(text: str) -> BlockCompression:
    compressions = {name: name for name in get_args(BlockCompression)}
    if text.lower() not in compressions:
        raise ValueError(text)
    compression: BlockCompression = compressions[text.lower()]
    return compression


def _compression(text: str) -> Compression | None:
    compressions: dict[str, Compression | None] = {"none": None, "lz4": "lz4", "zstd": "zstd"}
    if text.lower() not in compressions:
        raise ValueError(text)
    return compressions[text.lower()]


def _setting(default: Any, **columns: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(**columns)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one query; values only, so that they compare and pickle.

    Attributes:
        stores: How to reach the stores of the query.
        tasks_at_a_time: How many tasks an executor runs at a time; None if only the executors know. For the others see
            the table.
    """

    checkpoint_dir: str | None = _setting(
        None,
        key="checkpoint.dir",
        kind="URI",
        meaning="Directory below which every job keeps its checkpoints. "
        "Needed unless the storage is `memory`. With `_entropy_` at its end, state "
        "files are spread over the prefixes of an object store.",
        flink="execution.checkpointing.dir",
        older_flink=("state.checkpoints.dir", "state.backend.fs.checkpointdir"),
        parse=str,
    )
    checkpoint_storage: str = _setting(
        "filesystem",
        key="checkpoint.storage",
        kind="`filesystem` or `memory`",
        meaning="`memory` keeps state of at most 5 MiB a subtask (of keyed state, a file) in `_metadata` files in the "
        "checkpoint directory; without one, in the driver, where it is lost with it (for tests). "
        "Flink's name for it, `jobmanager`, is understood too.",
        flink="execution.checkpointing.storage",
        older_flink=("state.checkpoint-storage",),
        parse=_storage,
    )
    savepoint_dir: str | None = _setting(
        None,
        key="savepoint.dir",
        kind="URI",
        meaning="Directory for savepoints that are given no other.",
        flink="execution.checkpointing.savepoint-dir",
        parse=str,
    )
    savepoint_path: str | None = _setting(
        None,
        key="savepoint.path",
        kind="URI",
        meaning="Savepoint or checkpoint whose operators' state a query begins with that has no "
        "checkpoint yet; of no meaning once it has one.",
        flink="execution.state-recovery.path",
        older_flink=("execution.savepoint.path",),
        parse=str,
    )
    claim_mode: str = _setting(
        "no-claim",
        key="savepoint.claim-mode",
        kind="`no-claim` or `claim`",
        meaning="Whose the savepoint or checkpoint is that a query begins with. With `no-claim` it stays its "
        "owner's: the first checkpoint copies its state. With `claim` it becomes the query's: checkpoints "
        "refer to its files without copying them, and it is deleted once none of them needs it.",
        flink="execution.state-recovery.claim-mode",
        older_flink=("execution.savepoint-restore-mode",),
        parse=_claim_mode,
    )
    num_retained: int = _setting(
        1,
        key="checkpoint.num-retained",
        kind="number, at least 1",
        meaning="How many completed checkpoints are kept; older ones are deleted.",
        flink="execution.checkpointing.num-retained",
        older_flink=("state.checkpoints.num-retained",),
        parse=positive,
    )
    single_writer: bool = _setting(
        default=False,
        key="checkpoint.single-writer",
        kind="`true` or `false`",
        meaning="The promise that never more than one driver at a time runs a job. Stores need "
        "it that can't create a file only if it is not there yet, such as `sftp://`.",
        flink="",
        parse=boolean,
        default_text="false",
    )
    allow_non_restored_state: bool = _setting(
        default=False,
        key="checkpoint.allow-non-restored-state",
        kind="`true` or `false`",
        meaning="Whether a query may go on without operators that its last checkpoint has; their "
        "state is left behind.",
        flink="execution.state-recovery.ignore-unclaimed-state",
        parse=boolean,
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
        unit="s",
    )
    inline_threshold: int = _setting(
        INLINE_THRESHOLD_BYTES,
        key="state.inline-threshold",
        kind="size, 0 to 1m",
        meaning="State of at most this size travels in `_metadata` instead of in a file.",
        flink="execution.checkpointing.data-inline-threshold",
        older_flink=("state.storage.fs.memory-threshold", "state.backend.fs.memory-threshold"),
        parse=_threshold,
    )
    compression: Compression | None = _setting(  # noqa: RUF009  # a field
        None,
        key="state.compression",
        kind="`none`, `lz4` or `zstd`",
        meaning="How state is compressed. What is stored can be read whatever it is set to.",
        flink="execution.checkpointing.snapshot-compression",
        parse=_compression,
        default_text="none",
    )
    state_backend: StateBackends = _setting(  # noqa: RUF009  # a field
        StateBackends(),
        key="state.backend",
        kind="`columnar`, `heap` or `rocksdb`, and others for operators by uid: `columnar, big=rocksdb`",
        meaning="What keeps keyed state. Each reads what the others have written; `rocksdb` needs "
        "`holdfast[rocksdb]`.",
        flink="state.backend.type",
        older_flink=("state.backend",),
        parse=_backends,
        default_text="columnar",
    )
    rocksdb_memory: int = _setting(
        256 << 20,
        key="state.backend.rocksdb.memory",
        kind="size, 1m to 1024g",
        meaning="How much memory all of RocksDB's databases of an executor take for blocks, filters and "
        "write buffers together: each task that it runs at a time has an equal share, 1m at least.",
        flink="state.backend.rocksdb.memory.fixed-per-tm",
        parse=_rocksdb_memory,
        default_text="256m",
    )
    rocksdb_write_buffer_ratio: float = _setting(
        0.5,
        key="state.backend.rocksdb.memory.write-buffer-ratio",
        kind="number above 0 and below 1",
        meaning="How much of that memory is for rows that are in no file yet.",
        flink="state.backend.rocksdb.memory.write-buffer-ratio",
        parse=_share,
    )
    rocksdb_bloom_bits: int = _setting(
        10,
        key="state.backend.rocksdb.bloom-filter.bits-per-key",
        kind="number, 0 to 100",
        meaning="Bits of a filter for each row, by which a look-up passes over files without it. `0` makes no filters.",
        flink="state.backend.rocksdb.bloom-filter.bits-per-key",
        parse=_bits,
    )
    rocksdb_block_size: int = _setting(
        8 << 10,
        key="state.backend.rocksdb.block.blocksize",
        kind="size, 1 to 1g",
        meaning="How much is read at once, before compression. Smaller blocks are better where few rows of many are hot, and memory is short.",
        flink="state.backend.rocksdb.block.blocksize",
        parse=_block_bytes,
        default_text="8k",
    )
    rocksdb_compaction_style: CompactionStyle = _setting(  # noqa: RUF009  # a field
        "level",
        key="state.backend.rocksdb.compaction.style",
        kind="`level` or `universal`",
        meaning="How files are merged. `universal` writes less, and takes more room on disk.",
        flink="state.backend.rocksdb.compaction.style",
        parse=_compaction_style,
    )
    rocksdb_compression: BlockCompression = _setting(  # noqa: RUF009  # a field
        "none",
        key="state.backend.rocksdb.compression",
        kind="`none`, `lz4`, `zstd` or `snappy`",
        meaning="How blocks are compressed. What is stored can be read whatever it is set to.",
        flink="state.backend.rocksdb.compression.per.level",
        parse=_block_compression,
    )
    rocksdb_transfer_threads: int = _setting(
        4,
        key="state.backend.rocksdb.checkpoint.transfer.thread.num",
        kind="number, at least 1",
        meaning="How many files a task uploads or downloads at the same time.",
        flink="state.backend.rocksdb.checkpoint.transfer.thread.num",
        parse=positive,
    )
    rocksdb_metrics: bool = _setting(
        default=False,
        key="state.backend.rocksdb.metrics",
        kind="`true` or `false`",
        meaning="Whether RocksDB counts what it does, and each checkpoint says it, by subtask: see `holdfast show --json`.",
        flink="",
        parse=boolean,
        default_text="false",
    )
    local_recovery: str = _setting(
        "auto",
        key="state.local-recovery",
        kind="`auto`, `true` or `false`",
        meaning="Whether executors keep copies of state files on local disk, for the tasks of later "
        "batches; `auto` is yes, unless the checkpoint directory is a `file:` URI. Keyed state has copies with "
        "`auto` there, too: they are the checkpoint's own files if these are on the same disk.",
        flink="execution.state-recovery.from-local",
        parse=_recovery,
    )
    local_recovery_bytes: int = _setting(
        8 << 30,
        key="state.local-recovery.max-size",
        kind="size",
        meaning="How much room these copies may take in an executor's directory, about. The oldest "
        "are deleted.",
        flink="",
        parse=size,
        default_text="8g",
    )
    worker_memory: int = _setting(
        64 << 20,
        key="state.worker-memory",
        kind="size",
        meaning="How much memory of a Python worker states may keep between tasks. `0` keeps none.",
        flink="",
        parse=size,
        default_text="64m",
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

    stores: Stores = field(default=Stores(), hash=False)
    tasks_at_a_time: int | None = 1

    @classmethod
    def parse(cls, configuration: Mapping[str, str]) -> "Settings":
        """Read the settings from Spark's configuration; other keys are passed over.

        Raises:
            InvalidRequestError: An unknown `spark.holdfast.` key, or a value of another kind.
        """
        values = _own_values(configuration)
        uris = [values.get(name) for name in ("checkpoint_dir", "savepoint_dir", "savepoint_path")]
        return cls(
            stores=Stores.parse(configuration, *uris),
            tasks_at_a_time=tasks_at_a_time(configuration),
            **values,
        )

    @property
    def warm(self) -> WarmSettings:
        """How much state may stay on executors."""
        is_near = (self.checkpoint_dir or "").lower().startswith("file:")
        has_files = self.checkpoint_storage == "filesystem"
        is_wanted = self.local_recovery != "false"
        copies = self.local_recovery == "true" or (
            self.local_recovery == "auto" and has_files and not is_near
        )
        return WarmSettings(
            local_bytes=self.local_recovery_bytes if copies else 0,
            segment_bytes=self.local_recovery_bytes if has_files and is_wanted else 0,
            worker_bytes=self.worker_memory,
            backend=self.state_backend.backend,
            backends=self.state_backend.by_operator,
            rocksdb=RocksDBSettings(
                memory_bytes=self.rocksdb_memory,
                processes=self.tasks_at_a_time,
                write_buffer_ratio=self.rocksdb_write_buffer_ratio,
                bloom_bits=self.rocksdb_bloom_bits,
                block_bytes=self.rocksdb_block_size,
                compaction_style=self.rocksdb_compaction_style,
                compression=self.rocksdb_compression,
                transfer_threads=self.rocksdb_transfer_threads,
                has_metrics=self.rocksdb_metrics,
            ),
        )

    def job_directory(self, job_id: str) -> JobDirectory | None:
        """The directory of a job; None if checkpoints are kept in the driver alone.

        Raises:
            InvalidRequestError: The query is to claim what it begins with, and has no directory.
        """
        if self.checkpoint_dir is not None:
            directory = checkpoint_directory(self.checkpoint_dir)
            return JobDirectory.below(directory, job_id, single_writer=self.single_writer)
        if self.claim_mode == "claim":
            message = f"a query can claim what it begins with only if it keeps checkpoints; set {PREFIX}checkpoint.dir"
            raise InvalidRequestError(message)
        return None

    def open_storage(self) -> CheckpointStorage:
        """The checkpoint storage that the settings describe; it is not touched yet.

        Raises:
            InvalidRequestError: There is no directory, or it can't be used.
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
    defaults = {row.name: row.default for row in fields(Settings)}
    own = [(setting, defaults[name]) for name, setting in _rows().items()]
    return own + s3_settings_table()


def check_settings(configuration: Mapping[str, str]) -> None:
    """Refuse settings that are wrong whatever is set elsewhere.

    Raises:
        InvalidRequestError: An unknown key, a value of another kind, or a directory that can't be
            one.
    """
    values = _own_values(configuration)
    check_s3_values(configuration)
    if "checkpoint_dir" in values:
        Settings(**values).open_storage()


def check_known(configuration: Mapping[str, str]) -> None:
    """Refuse keys that look like settings of Holdfast and are none; values don't count.

    Raises:
        InvalidRequestError: There is such a key; the message has the right name.
    """
    check_keys(configuration, [setting for setting, _ in settings_table()])


def _own_values(configuration: Mapping[str, str]) -> dict[str, Any]:
    """The values that are set, by field of `Settings`."""
    check_known(configuration)
    return {
        name: setting.value(key, configuration[key])
        for name, setting in _rows().items()
        if (key := setting.name) in configuration
    }


def _rows() -> dict[str, Setting]:
    """The rows that are fields of `Settings`, by field."""
    return {
        row.name: replace(row.metadata["setting"], argument=row.name)
        for row in fields(Settings)
        if row.metadata
    }
