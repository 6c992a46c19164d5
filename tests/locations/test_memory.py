import pytest

from holdfast.locations.adapters import ExclusiveFileSystem, MemoryFileSystem
from holdfast.locations.file_systems import memory as store
from holdfast.testing import ExclusiveFileSystemContract


class TestMemoryFileSystem(ExclusiveFileSystemContract):
    @pytest.fixture
    def file_system(self) -> ExclusiveFileSystem:
        return MemoryFileSystem()

    @pytest.fixture
    def directory(self, memory_directory: str) -> str:
        return memory_directory

    def files(self, directory: str) -> dict[str, bytes]:
        return {
            uri.removeprefix(f"{directory}/"): data
            for uri, (data, _) in store.FILES.items()
            if uri.startswith(f"{directory}/")
        }

    def put(self, uri: str, data: bytes) -> None:
        store.FILES[uri] = (data, 0)
