"""How Spark's sides of two savepoints differ. Pure."""

from dataclasses import dataclass

from holdfast.locations.coordination import without_place
from holdfast.locations.handles import StreamStateHandle
from holdfast.spark_progress.spark_files import SparkFiles


@dataclass(frozen=True, slots=True)
class SparkFilesComparison:
    """The differences between Spark's parts of two savepoints.

    Attributes:
        is_committed: Whether Spark had noted that the batch is done, in each savepoint; None if both agree.
        settings: Settings that differ, by name: the text in each savepoint; None where it is not set.
        paths: Files that only one savepoint has, or that differ in content, sorted.
    """

    is_committed: tuple[bool, bool] | None
    settings: dict[str, tuple[str | None, str | None]]
    paths: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return self.is_committed is None and not (self.settings or self.paths)


def compare_spark_files(first: SparkFiles, second: SparkFiles) -> SparkFilesComparison:
    """How Spark's side of two savepoints differs, wherever the files are. Reads none of them."""
    old, new = _contents(first), _contents(second)
    return SparkFilesComparison(
        is_committed=(
            (first.is_committed, second.is_committed)
            if first.is_committed != second.is_committed
            else None
        ),
        settings={
            key: (first.settings.get(key), second.settings.get(key))
            for key in sorted(first.settings | second.settings)
            if first.settings.get(key) != second.settings.get(key)
        },
        paths=tuple(path for path in sorted(old | new) if old.get(path) != new.get(path)),
    )


def _contents(content: SparkFiles) -> dict[str, StreamStateHandle]:
    return {file.path: without_place(file.handle) for file in content.files}
