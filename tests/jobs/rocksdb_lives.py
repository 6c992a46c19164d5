"""Lives of a backend on RocksDB that end by SIGKILL, each in a process of its own, and what the next one has.

    python -m jobs.rocksdb_lives DIRECTORY STEP

A life restores from a checkpoint of two subtasks, writes, and takes a snapshot. It is killed before every STEP-th call by which
Python touches a file of it, and while RocksDB opens, merges and captures. Then another process restores from the last
confirmed checkpoint, on the same directory of the host; beside them a process lives on that has files there, too.
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
        """Take the checkpoint that all lives go on from."""
        location = self._access.initialize_location_for_checkpoint(1)
        handles = []
        for groups in HALVES:
            tables = self._opened(groups, [])
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
        tables = self._opened(ALL, self._handles())
        table = tables.table(SPEC)
        keys = _keys(range(ROWS // 2, 2 * ROWS))
        table.write(keys.identities, (pa.array([-1] * len(keys)),))
        tables.snapshot(2, self._access.initialize_location_for_checkpoint(2)).run()
        tables.close()

    def write_on(self) -> None:
        """Restore, and write without end, so that files are merged."""
        table = self._opened(ALL, self._handles()).table(SPEC)
        keys = _keys(range(50 * ROWS))
        while True:
            table.write(keys.identities, keys.columns)

    def check(self) -> None:
        """Restore as the next attempt does: all rows are there, and nothing else of who was killed."""
        tables = self._opened(ALL, self._handles())
        rows = [row for step in tables.table(SPEC).scan() for row in step.values[0].to_pylist()]
        assert sorted(rows) == list(range(ROWS)), len(rows)
        names = os.listdir(self._host)
        alive = [name for name in names if name.endswith(".rocksdb")]
        assert len(alive) == 2, alive  # this process' own, and the neighbour's
        assert not [name for name in names if name not in alive and len(name) != 32], names
        tables.close()

    def stay(self, began: int, ends: tuple[int, int]) -> None:
        """Live beside all others, and have all rows when they are over, or whoever started them is."""
        reads, writes = ends
        os.close(writes)
        tables = self._opened(ALL, self._handles())
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
        handles: list[SegmentsStateHandle] = pickle.loads(self._confirmed.read_bytes())  # our own
        return handles

    def _opened(self, groups: KeyGroupRange, handles: list[SegmentsStateHandle]) -> Any:
        host = str(self._host)
        return open_tables(groups, handles, backend="rocksdb", directory=host, rocksdb=SETTINGS)


def _keys(numbers: range) -> Keys:
    return Keys.of([pa.array(numbers, pa.int64())], GROUPS)


def forked(action: Callable[[], object]) -> int:
    """The id of a process that does the action, and ends with status 0 if it succeeds."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException as error:  # noqa: BLE001  # it is shown, and the process ends
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid


def succeeded(pid: int) -> bool:
    """Whether a process ended well; False if it was killed. All else is an error."""
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        return False
    assert os.WEXITSTATUS(status) == 0, status
    return True


def killed_before(nth: int, directory: Path, action: Callable[[], object]) -> Callable[[], object]:
    """The action, in a process that is killed before the n-th call of Python that touches a file of the directory."""

    def acting() -> None:
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

    return acting


def killed_when(stands: Callable[[], bool], action: Callable[[], object]) -> None:
    """Do the action in processes until another one has killed one of them where it stands there; who is faster ends well."""

    def acting() -> None:
        with suppress(FileNotFoundError):
            action()

    while True:
        pid = forked(acting)
        while not stands():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                assert status == 0, status
                break
        else:
            os.kill(pid, signal.SIGKILL)
            if not succeeded(pid):
                return


def opened(host: Path) -> list[str]:
    """Directories of databases on the host."""
    return glob.glob(f"{host}/*.rocksdb")


def main(directory: Path, step: int) -> None:
    """Kill them all, and print how many."""
    lives = Lives(directory)
    host = directory / "host"
    assert succeeded(forked(lives.begin))
    came, began = os.pipe()
    ends = os.pipe()
    neighbour = forked(lambda: lives.stay(began, ends))
    os.close(began)
    os.read(came, 1)  # until it is closed
    nth, killed = 1, 0
    while True:
        lives.forget_copies()
        if succeeded(forked(killed_before(nth, directory, lives.live))):
            break
        assert succeeded(forked(lives.check))
        nth, killed = nth + step, killed + 1
    (known,) = opened(host)

    def has(*names: str) -> bool:
        return any(
            glob.glob(f"{path}/{name}") for path in opened(host) if path != known for name in names
        )

    def merges() -> bool:
        for path in opened(host):
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
    for stands, action in places:
        killed_when(stands, action)
        assert succeeded(forked(lives.check))
    os.close(ends[1])
    assert succeeded(neighbour)
    print(killed + len(places))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
