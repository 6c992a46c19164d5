import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import CheckpointConflictError
from holdfast.locations import checkpoint_storage, complete_checkpoint
from holdfast.locations.adapters import CheckpointedStateScope, ExclusiveFileSystem, file_system_for
from holdfast.testing import counting_file_system, metadata_of


def test_calls_and_bytes_are_counted(memory_directory: str) -> None:
    with counting_file_system(memory_directory) as counts:
        store = file_system_for(counts.directory)
        stream = store.create(f"{counts.directory}/x")
        stream.write(b"123")
        stream.write(memoryview(b"4567"))
        stream.commit()
        with store.open(f"{counts.directory}/x") as stored:
            assert stored.read(2) == b"12"
            assert stored.read() == b"34567"
        assert counts.bytes_written == counts.bytes_read == 7
        assert {name: counts.calls[name] for name in ("create", "write", "commit", "open")} == {
            "create": 1,
            "write": 2,
            "commit": 1,
            "open": 1,
        }
        assert counts.calls["read"] >= 2
        counts.clear()
        assert (counts.calls, counts.bytes_written, counts.bytes_read) == ({}, 0, 0)


def test_a_failed_publish_is_a_call_without_bytes(memory_directory: str) -> None:
    with counting_file_system(memory_directory) as counts:
        store = file_system_for(counts.directory)
        assert isinstance(store, ExclusiveFileSystem)
        store.publish(f"{counts.directory}/x", b"1234")
        with pytest.raises(CheckpointConflictError):
            store.publish(f"{counts.directory}/x", b"12345678")
        assert counts.calls == {"publish": 2}
        assert counts.bytes_written == 4


def test_thread_counters_lose_no_updates(memory_directory: str) -> None:
    with counting_file_system(memory_directory) as counts, ThreadPoolExecutor(8) as pool:
        store = file_system_for(counts.directory)
        start = threading.Barrier(8)

        def listing(_: int) -> None:
            start.wait()
            for _ in range(100):
                list(store.list(counts.directory))

        list(pool.map(listing, range(8)))
        assert counts.calls == {"list": 800}


def test_a_checkpoint_with_inline_state_costs_one_publish(memory_directory: str) -> None:
    with counting_file_system(memory_directory) as counts:
        access = checkpoint_storage(counts.directory).create_checkpoint_storage("job")
        access.initialize_base_locations_for_checkpoint()
        location = access.initialize_location_for_checkpoint(1)
        counts.clear()
        with location.create_checkpoint_state_output_stream(
            CheckpointedStateScope.EXCLUSIVE
        ) as stream:
            stream.write(bytes(1000))
            handle = stream.close_and_get_handle()
        assert handle is not None
        done = complete_checkpoint(location, metadata_of(handle))
        assert counts.calls == {"publish": 1}
        assert counts.bytes_written == done.metadata_bytes
