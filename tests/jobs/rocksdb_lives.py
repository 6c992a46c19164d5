"""Lives of a backend on RocksDB that end by SIGKILL, each in its own process, and the state of the next one.

    python -m jobs.rocksdb_lives DIRECTORY STEP

A life restores from a checkpoint of two subtasks, writes, and takes a snapshot. It is killed before every STEP-th call of
Python that touches one of its files, and while RocksDB opens, merges and captures. Then another process restores from the
last confirmed checkpoint in the same directory of the host. A neighbour process keeps files in that directory all the time.
"""

import glob
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.backends.keyed import Keys, RocksDBSettings, TableSpec, open_tables
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.handles import SegmentsStateHandle

GROUPS = 8
ALL = KeyGroupRange(0, GROUPS - 1)
HALVES = KeyGroupRange(0, 3), KeyGroupRange(4, GROUPS - 1)
ROWS = 2000
SPEC = TableSpec("n", "value", pa.schema([("k", pa.int64())]), pa.schema([("value", pa.int64())]))
SETTINGS = RocksDBSettings(memory_bytes=1 << 20)


class Lives:
    """Processes that share a storage and a directory of the host.

    Args:
        directory: Where both are.
    """

    def __init__(self, directory: Path) -> None:
        self._store = directory / "store"
        self._host = directory / "host"
        self._confirmed = directory / "confirmed"
        self._host.mkdir()
        storage = FileSystemCheckpointStorage(self._store.as_uri(), inline_threshold=0)
        self._access = storage.create_checkpoint_storage("job")
        self._access.initialize_base_locations_for_checkpoint()

    def begin(self) -> None:
        """Take the checkpoint that all lives restore."""
        location = self._access.initialize_location_for_checkpoint(1)
        handles = []
        for groups in HALVES:
            tables = self._open_tables(groups, [])
            for part in range(2):  # a sorted file each
                keys = _keys(range(part * ROWS // 2, (part + 1) * ROWS // 2))
                mine = keys.identities.sort_keys >> 48
                kept = (mine >= groups.start_key_group) & (mine <= groups.end_key_group)
                keys = Keys.of([keys.columns[0].filter(pa.array(kept))], GROUPS)
                tables.table(SPEC).write(keys.identities, keys.columns)
                handles += tables.snapshot(1, location).run().state.managed_keyed * part
            tables.close()
        self._confirmed.write_bytes(pickle.dumps(handles))

    def live(self) -> None:
        """Restore, write, take a snapshot that is never confirmed, and close."""
        tables = self._open_tables(ALL, self._handles())
        table = tables.table(SPEC)
        keys = _keys(range(ROWS // 2, 2 * ROWS))
        table.write(keys.identities, (pa.array([-1] * len(keys)),))
        tables.snapshot(2, self._access.initialize_location_for_checkpoint(2)).run()
        tables.close()

    def write_on(self) -> None:
        """Restore, and write without end, so that files are merged."""
        table = self._open_tables(ALL, self._handles()).table(SPEC)
        keys = _keys(range(50 * ROWS))
        while True:
            table.write(keys.identities, keys.columns)

    def check(self) -> None:
        """Restore as the next attempt does: all rows are there, and no files of the killed process."""
        tables = self._open_tables(ALL, self._handles())
        rows = [row for step in tables.table(SPEC).scan() for row in step.values[0].to_pylist()]
        assert sorted(rows) == list(range(ROWS)), len(rows)
        names = os.listdir(self._host)
        alive = [name for name in names if name.endswith(".rocksdb")]
        assert len(alive) == 2, alive  # of this process and of the neighbour
        assert not [name for name in names if name not in alive and len(name) != 32], names
        tables.close()

    def stay(self, began: int, ends: tuple[int, int]) -> None:
        """Restore, stay open until all others have ended, and then have all rows."""
        reads, writes = ends
        os.close(writes)
        tables = self._open_tables(ALL, self._handles())
        os.close(began)
        os.read(reads, 1)
        assert sum(map(len, tables.table(SPEC).scan())) == ROWS
        tables.close()

    def forget_copies(self) -> None:
        """Delete the copies on the host, so that the next life downloads."""
        for path in self._host.iterdir():
            if path.is_file():
                path.unlink()

    def _handles(self) -> list[SegmentsStateHandle]:
        handles: list[SegmentsStateHandle] = pickle.loads(
            self._confirmed.read_bytes()
        )  # written by `begin`
        return handles

    def _open_tables(self, groups: KeyGroupRange, handles: list[SegmentsStateHandle]) -> Any:
        host = str(self._host)
        return open_tables(groups, handles, backend="rocksdb", directory=host, rocksdb=SETTINGS)


def _keys(numbers: range) -> Keys:
    return Keys.of([pa.array(numbers, pa.int64())], GROUPS)


def fork(action: Callable[[], object]) -> int:
    """Run the action in a child process, and return its id; its status is 0 if the action succeeds."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException as error:  # noqa: BLE001  # printed; the process ends
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid


def await_exit(pid: int) -> bool:
    """Wait for a process. Return True if it succeeded, False if it was killed; all else is an error."""
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        return False
    assert os.WEXITSTATUS(status) == 0, status
    return True


def dying_before(nth: int, directory: Path, action: Callable[[], object]) -> Callable[[], object]:
    """Return the action with a SIGKILL before the n-th call of Python that touches a file of the directory."""

    def run() -> None:
        calls = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal calls
            if event == "fcntl.flock" or (
                event.startswith(("open", "os.", "shutil."))
                and any(str(argument).startswith(str(directory)) for argument in arguments)
            ):
                calls += 1
                if calls == nth:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        action()

    return run


def kill_when(is_reached: Callable[[], bool], action: Callable[[], object]) -> None:
    """Run the action in new processes until one of them is killed at the point; one that passes it must succeed."""

    def run() -> None:
        with suppress(FileNotFoundError):
            action()

    while True:
        pid = fork(run)
        while not is_reached():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                assert status == 0, status
                break
        else:
            os.kill(pid, signal.SIGKILL)
            if not await_exit(pid):
                return


def database_directories(host: Path) -> list[str]:
    """Return the directories of databases on the host."""
    return glob.glob(f"{host}/*.rocksdb")


def main(directory: Path, step: int) -> None:
    """Kill lives at all points, and print how many."""
    lives = Lives(directory)
    host = directory / "host"
    assert await_exit(fork(lives.begin))
    came, began = os.pipe()
    ends = os.pipe()
    neighbour = fork(lambda: lives.stay(began, ends))
    os.close(began)
    os.read(came, 1)  # until it is closed
    nth, killed = 1, 0
    while True:
        lives.forget_copies()
        if await_exit(fork(dying_before(nth, directory, lives.live))):
            break
        assert await_exit(fork(lives.check))
        nth, killed = nth + step, killed + 1
    (known,) = database_directories(host)

    def has(*names: str) -> bool:
        return any(
            glob.glob(f"{path}/{name}")
            for path in database_directories(host)
            if path != known
            for name in names
        )

    def merges() -> bool:
        for path in database_directories(host):
            with suppress(FileNotFoundError):
                log = Path(path, "db/LOG").read_text()
                if path != known and log.count("compaction_started") > log.count("compaction_fin"):
                    return True
        return False

    places: list[tuple[Callable[[], bool], Callable[[], object]]] = [
        (lambda: has("db/LOG"), lives.live),
        (lambda: has("db/*.log"), lives.live),
        (lambda: has("snapshot-*"), lives.live),
        (merges, lives.write_on),
    ]
    for is_reached, action in places:
        kill_when(is_reached, action)
        assert await_exit(fork(lives.check))
    os.close(ends[1])
    assert await_exit(neighbour)
    print(killed + len(places))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
