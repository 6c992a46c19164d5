"""A machine that is too small is never taken for damaged state."""

import errno
import os
import resource
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import list_state
from contracts.processes import output_of

from holdfast.backends import OperatorStateBackend
from holdfast.backends.keyed.rocksdb_errors import map_errors
from holdfast.backends.snapshot import Compression
from holdfast.common import shortage_of
from holdfast.errors import CheckpointError, ResourceExhaustedError, StorageFullError
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import file_system_for

READ = """
import resource, sys
from pathlib import Path
import msgspec
from holdfast.backends import OperatorStateBackend
from holdfast.locations.handles import OperatorStateHandle
handle = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=OperatorStateHandle)
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (32 << 20),) * 2)
try:
    OperatorStateBackend.restore([handle])
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_state_larger_than_memory_is_not_damage(
    tmp_path: Path, compression: Compression | None
) -> None:
    storage = FileSystemCheckpointStorage(f"file://{tmp_path}")
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    backend = OperatorStateBackend()
    list_state(backend, "s", pa.binary()).add_all([bytes(1 << 20)] * 96)
    location = access.initialize_location_for_checkpoint(1)
    (handle,) = backend.snapshot(location, compression=compression).run().state.managed_operator
    (tmp_path / "handle").write_bytes(msgspec.msgpack.encode(handle))
    printed = output_of(READ, str(tmp_path / "handle"))
    assert printed.startswith(("ResourceExhaustedError", "MemoryError", "ArrowMemoryError")), (
        printed
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), ResourceExhaustedError),
        (pa.ArrowMemoryError("malloc of size 4096 failed"), ResourceExhaustedError),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ResourceExhaustedError),
        (OSError(errno.EMFILE, "Too many open files"), ResourceExhaustedError),
        (OSError(errno.ENFILE, "Too many open files in system"), ResourceExhaustedError),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), ResourceExhaustedError),
        (RuntimeError("can't start new thread"), ResourceExhaustedError),
        (OSError(errno.ENOSPC, "No space left on device"), StorageFullError),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), StorageFullError),
        (OSError(errno.EIO, "Input/output error"), None),
        (OSError("Lz4 compressed input contains more than one frame"), None),
        (pa.ArrowInvalid("not an Arrow file"), None),
        (RuntimeError("cannot schedule new futures after shutdown"), None),
        (ValueError("damaged"), None),
    ],
)
def test_resource_errors_differ_from_corruption(
    error: Exception, expected: type[CheckpointError] | None
) -> None:
    shortage = shortage_of(error, "file:///x")
    assert shortage is None if expected is None else type(shortage) is expected
    if expected is not None:
        assert getattr(shortage, "location", None) == "file:///x"
        with pytest.raises(expected), map_errors("/x"):
            raise error


def test_lack_of_file_handles_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    uri = f"file://{tmp_path}/file"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(16)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(held) + 1, hard))
        with pytest.raises(ResourceExhaustedError, match="too few file handles"):
            file_system_for(uri).inner.open(uri)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)


def test_rocksdb_corruption_for_lack_of_handles_is_not_damage(tmp_path: Path) -> None:
    text = "Corruption: Can't access /000012.sst: IO error: While open: Too many open files"
    with (
        pytest.raises(ResourceExhaustedError, match="nothing is damaged"),
        map_errors(str(tmp_path)),
    ):
        raise Exception(text)  # noqa: TRY002  # the class that rocksdict has for all errors
