import pytest
from contracts.file_system import FileSystemContract

from holdfast.locations import FileSystem, MemoryFileSystem
from holdfast.locations import _memory as store


class TestMemoryFileSystem(FileSystemContract):
    @pytest.fixture
    def file_system(self) -> FileSystem:
        return MemoryFileSystem()

    @pytest.fixture
    def directory(self, memory_directory: str) -> str:
        return memory_directory

    def files(self, directory: str) -> dict[str, bytes]:
        return {
            uri.removeprefix(f"{directory}/"): data
            for uri, (data, _) in store._FILES.items()
            if uri.startswith(f"{directory}/")
        }

    def put(self, uri: str, data: bytes) -> None:
        store._FILES[uri] = (data, 0)
