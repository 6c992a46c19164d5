"""The settings of a query, `spark.holdfast.*`: declared here, read from a session, printed into the docs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from holdfast.backends.keyed import BACKEND_NAMES, BackendName, RocksDBSettings
from holdfast.backends.snapshot import Compression
from holdfast.common import checkpoint_directory
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
from holdfast.spark.settings.metrics import METRICS, MetricsSettings
from holdfast.spark.settings.rocksdb import ROCKSDB, task_slots
from holdfast.spark.settings.setting import (
    BOOLEAN,
    PREFIX,
    Setting,
    SettingType,
    check_keys,
    choice,
    duration,
    number,
    size,
)
from holdfast.spark.settings.stores import Stores, check_store_settings, store_settings_table

_MEMORY = MemoryCheckpointStorage()
"""One for the process, so that a restarted query finds its checkpoints."""

_URI = SettingType("URI")


@dataclass(frozen=True, slots=True)
class StateBackends:
    """The backends of keyed state: of single operators, by uid, and of all others."""

    backend: BackendName = "columnar"
    by_operator: tuple[tuple[str, BackendName], ...] = ()

    def __str__(self) -> str:
        return ", ".join([self.backend, *(f"{uid}={name}" for uid, name in self.by_operator)])


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """The backends of keyed state, and the limits of task-local state, where 0 turns it off.

    Attributes:
        local_bytes: Maximum size of the files in an executor's directory.
        duplicate_files: Whether state files are among them, and not only segments of keyed state.
        worker_bytes: Maximum memory of states that stay in one Python worker.
        prefetch: Whether workers complete local copies of segments between batches.
        backend: The backend of keyed state.
        backends: The backends of operators that have another one: uid and backend of each.
        rocksdb: Memory, files and threads of RocksDB.
    """

    local_bytes: int = 0
    duplicate_files: bool = False
    worker_bytes: int = 0
    prefetch: bool = False
    backend: BackendName = "columnar"
    backends: tuple[tuple[str, BackendName], ...] = ()
    rocksdb: RocksDBSettings = RocksDBSettings()  # noqa: RUF009  # it is frozen

    def backend_of(self, uid: str) -> BackendName:
        return dict(self.backends).get(uid, self.backend)


def _parse_backends(text: str) -> StateBackends:
    by_operator: dict[str, BackendName] = {}  # by the empty uid that of all others
    for item in text.split(","):
        uid, equals, name = (part.strip() for part in item.rpartition("="))
        backend = {"hashmap": "heap"}.get(name.lower(), name.lower())
        if backend not in BACKEND_NAMES or (equals and not uid):
            raise ValueError(text)
        if uid in by_operator:
            subject = f"operator {uid!r}" if uid else "all operators"
            message = f"{PREFIX}state.backend is {text!r}, with two backends for {subject}; leave one of them"
            raise InvalidRequestError(message, kind="setting")
        by_operator[uid] = backend
    usual = by_operator.pop("", "columnar")
    return StateBackends(usual, tuple(by_operator.items()))


def _declare(key: str, type: SettingType, meaning: str, **options: Any) -> Any:
    """Return the attribute of a setting; arguments are those of `Setting`."""
    setting = Setting(key, type, meaning, **options)
    return field(default=setting.default, metadata={"setting": setting})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one query; values only, so that they compare and pickle.

    Attributes:
        rocksdb: RocksDB settings.
        metrics: The destinations of metrics and spans.
        stores: Settings of the query's stores. For the other attributes see the table of settings.
    """

    checkpoint_dir: str | None = _declare(
        "checkpoint.dir",
        _URI,
        "Directory of the checkpoints of all jobs. "
        "Required unless the storage is `memory`. With `_entropy_` at its end, state "
        "files are spread over the prefixes of an object store.",
        flink="execution.checkpointing.dir",
        older_flink=("state.checkpoints.dir", "state.backend.fs.checkpointdir"),
    )
    checkpoint_storage: str = _declare(
        "checkpoint.storage",
        choice("filesystem", "memory", aliases={"jobmanager": "memory"}),
        "`memory` keeps state of at most 5 MiB a subtask (of keyed state, a file) in `_metadata` files in the "
        "checkpoint directory; without one, in the driver, where it is lost with it (for tests). "
        "Flink's name for it, `jobmanager`, is an alias.",
        default="filesystem",
        flink="execution.checkpointing.storage",
        older_flink=("state.checkpoint-storage",),
    )
    savepoint_dir: str | None = _declare(
        "savepoint.dir",
        _URI,
        "Default directory of savepoints.",
        flink="execution.checkpointing.savepoint-dir",
    )
    savepoint_path: str | None = _declare(
        "savepoint.path",
        _URI,
        "Savepoint or checkpoint from which a query without a checkpoint restores the state of its operators; "
        "ignored once the query has a checkpoint.",
        flink="execution.state-recovery.path",
        older_flink=("execution.savepoint.path",),
    )
    claim_mode: str = _declare(
        "savepoint.claim-mode",
        choice("no-claim", "claim", aliases={"no_claim": "no-claim"}),
        "Owner of the savepoint or checkpoint that a query restores. With `no-claim` the owner stays the "
        "same: the first checkpoint copies its state. With `claim` the query owns it: checkpoints "
        "refer to its files without copying them, and it is deleted when no checkpoint needs it.",
        default="no-claim",
        flink="execution.state-recovery.claim-mode",
        older_flink=("execution.savepoint-restore-mode",),
    )
    num_retained: int = _declare(
        "checkpoint.num-retained",
        number(min_value=1),
        "Number of completed checkpoints to retain; older ones are deleted.",
        default=1,
        flink="execution.checkpointing.num-retained",
        older_flink=("state.checkpoints.num-retained",),
    )
    single_writer: bool = _declare(
        "checkpoint.single-writer",
        BOOLEAN,
        "The promise that at most one driver at a time runs a job. Required by stores "
        "without an atomic create-if-absent, such as `sftp://`.",
        default=False,
    )
    allow_non_restored_state: bool = _declare(
        "checkpoint.allow-non-restored-state",
        BOOLEAN,
        "Whether a query may resume without operators of its last checkpoint; their state is dropped.",
        default=False,
        flink="execution.state-recovery.ignore-unclaimed-state",
    )
    orphan_grace_s: float = _declare(
        "cleanup.orphan-grace",
        duration("`24h` or `90m`", min_s=MIN_GRACE_S),  # the sweep runs during the first batch
        "Age, by the store's clock, up to which files that no checkpoint refers to are kept. "
        "A query deletes older ones, which crashes have left in its job's directory, when it starts "
        "and whenever this time has passed again. Must be longer than any micro-batch takes.",
        default=GRACE_S,
    )
    inline_threshold: int = _declare(
        "state.inline-threshold",
        size(max_bytes=MAX_INLINE_THRESHOLD_BYTES),
        "State of at most this size is stored in `_metadata` instead of a file.",
        default=INLINE_THRESHOLD_BYTES,
        flink="execution.checkpointing.data-inline-threshold",
        older_flink=("state.storage.fs.memory-threshold", "state.backend.fs.memory-threshold"),
    )
    compression: Compression | None = _declare(  # noqa: RUF009  # a field
        "state.compression",
        choice(None, "lz4", "zstd"),
        "Compression of new state. Stored state is read with any value.",
        flink="execution.checkpointing.snapshot-compression",
    )
    state_backend: StateBackends = _declare(  # noqa: RUF009  # a field
        "state.backend",
        SettingType(
            "`columnar`, `heap` or `rocksdb`, and others for operators by uid: `columnar, big=rocksdb`",
            _parse_backends,
        ),
        "Backend of keyed state. Each reads the state of the others; `rocksdb` needs "
        "`holdfast[rocksdb]`.",
        default=StateBackends(),
        flink="state.backend.type",
        older_flink=("state.backend",),
    )
    rocksdb: RocksDBSettings = field(  # a field
        default=RocksDBSettings(), metadata={"section": ROCKSDB}
    )
    local_recovery: str = _declare(
        "state.local-recovery",
        choice("auto", "true", "false"),
        "Whether executors keep copies of state files on local disk, for the tasks of later "
        "batches; `auto` means yes, unless the checkpoint directory is a `file:` URI. Even then `auto` keeps "
        "copies of keyed state, which are hard links to the checkpoint's files if these are on the same disk.",
        default="auto",
        flink="execution.state-recovery.from-local",
    )
    local_recovery_bytes: int = _declare(
        "state.local-recovery.max-size",
        size(),
        "Approximate maximum size of these copies in an executor's directory. The oldest are deleted.",
        default=8 << 30,
    )
    state_prefetch: bool = _declare(
        "state.prefetch",
        BOOLEAN,
        "Whether Python workers fetch the blocks of keyed state that their host lacks while they wait for the next "
        "batch. Otherwise only the blocks that a batch needs are fetched. Copies stay below their maximum size.",
        default=True,
    )
    task_locality: bool = _declare(
        "state.task-locality",
        BOOLEAN,
        "Whether Spark prefers to run a subtask on the executor that ran it in the last batch, which has a copy of its "
        "state. It has no effect unless Spark's `spark.shuffle.reduceLocality.enabled` is false.",
        default=False,
    )
    worker_memory: int = _declare(
        "state.worker-memory",
        size(),
        "Memory of a Python worker for states between tasks. `0` keeps none.",
        default=64 << 20,
    )
    job_id: str | None = _declare(
        "job.id",
        SettingType("name of a directory", check_job_id),
        "The job's directory in the checkpoint directory. "
        "By default the id that Spark gives to the query.",
    )
    metrics: MetricsSettings = field(  # a field
        default=MetricsSettings(), metadata={"section": METRICS}
    )

    stores: Stores = field(default=Stores(), hash=False)

    @classmethod
    def parse(cls, configuration: Mapping[str, str]) -> "Settings":
        """Read the settings from Spark's configuration; other keys are ignored. Raises `InvalidRequestError`."""
        values = _parse_values(configuration)
        uris = [values.get(name) for name in ("checkpoint_dir", "savepoint_dir", "savepoint_path")]
        rocksdb = replace(values.pop("rocksdb"), processes=task_slots(configuration))
        return cls(stores=Stores.parse(configuration, *uris), rocksdb=rocksdb, **values)

    @property
    def state(self) -> StateSettings:
        is_local = (self.checkpoint_dir or "").lower().startswith("file:")
        has_files = self.checkpoint_storage == "filesystem"
        is_enabled = has_files and self.local_recovery != "false"
        return StateSettings(
            local_bytes=self.local_recovery_bytes if is_enabled else 0,
            duplicate_files=self.local_recovery == "true" or not is_local,
            worker_bytes=self.worker_memory,
            prefetch=self.state_prefetch,
            backend=self.state_backend.backend,
            backends=self.state_backend.by_operator,
            rocksdb=self.rocksdb,
        )

    def job_directory(self, job_id: str) -> JobDirectory | None:
        """Return the directory of a job; None if checkpoints are only in the driver. Raises `InvalidRequestError`."""
        if self.checkpoint_dir is not None:
            directory = checkpoint_directory(self.checkpoint_dir)
            return JobDirectory.below(directory, job_id, single_writer=self.single_writer)
        if self.claim_mode == "claim":
            message = f"claim mode needs a checkpoint directory; set {PREFIX}checkpoint.dir"
            raise InvalidRequestError(message, kind="setting")
        return None

    def open_storage(self) -> CheckpointStorage:
        """Return the checkpoint storage of the settings, without accessing it. Raises `InvalidRequestError`."""
        if self.checkpoint_storage == "memory" and self.checkpoint_dir is None:
            return _MEMORY
        if self.checkpoint_dir is None:
            raise InvalidRequestError(
                f"no checkpoint directory is set; set {PREFIX}checkpoint.dir to a URI such as "
                "file:///data/holdfast, or pass configure(checkpoint_dir=...)",
                kind="setting",
            )
        if self.checkpoint_dir.lower().startswith("memory:"):
            message = (
                f"executors can't reach the driver's memory; set {PREFIX}checkpoint.storage to "
                "memory instead of the directory"
            )
            raise InvalidRequestError(message, self.checkpoint_dir, kind="setting")
        if self.checkpoint_storage == "memory":
            return MemoryCheckpointStorage(
                directory=self.checkpoint_dir, single_writer=self.single_writer
            )
        return FileSystemCheckpointStorage(
            self.checkpoint_dir,
            inline_threshold=self.inline_threshold,
            single_writer=self.single_writer,
        )


_SECTIONS: dict[str, Mapping[str, Setting]] = {
    row.name: row.metadata["section"] for row in fields(Settings) if "section" in row.metadata
}
"""Settings of attributes that are settings objects themselves, by attribute and field."""

_OWN = {
    row.name: replace(row.metadata["setting"], argument=row.name)
    for row in fields(Settings)
    if "setting" in row.metadata
}
"""All other settings, by attribute."""


def settings_table() -> list[Setting]:
    """Return all settings, in the order of the docs."""
    table = []
    for row in fields(Settings):
        if row.name in _OWN:
            table.append(_OWN[row.name])
        table += _SECTIONS.get(row.name, {}).values()
    return table + store_settings_table()


def check_settings(configuration: Mapping[str, str]) -> None:
    """Refuse settings that are not valid whatever else is set. Raises `InvalidRequestError`."""
    values = _parse_values(configuration)
    check_store_settings(configuration)
    if "checkpoint_dir" in values:
        Settings(**values).open_storage()


def _parse_values(configuration: Mapping[str, str]) -> dict[str, Any]:
    """Parse the settings, except those of stores, by attribute of `Settings`."""
    check_keys(configuration, settings_table())

    def parse(settings: Mapping[str, Setting]) -> dict[str, Any]:
        return {
            name: setting.parse(configuration[setting.name])
            for name, setting in settings.items()
            if setting.name in configuration
        }

    return parse(_OWN) | {
        "rocksdb": RocksDBSettings(**parse(ROCKSDB)),
        "metrics": MetricsSettings(**parse(METRICS)),
    }
