"""What two savepoints have of Spark's, one and not the other. Pure."""

from dataclasses import dataclass

from holdfast.locations.coordination import without_place
from holdfast.locations.handles import StreamStateHandle
from holdfast.spark_progress.spark_files import SparkFiles


@dataclass(frozen=True, slots=True)
class SparkFilesComparison:
    """What is not the same in Spark's side of two savepoints.

    Attributes:
        is_committed: Whether Spark had noted that the batch is done, in each; None if it is the same.
        settings: Settings that differ, by name: in each; None where one doesn't have it.
        paths: Files that only one has, or that hold something else, sorted.
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
    return {one.path: without_place(one.handle) for one in content.files}
