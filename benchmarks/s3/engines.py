"""The engines."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from benchmarks.rounds import LeftOutError, reason_of
from benchmarks.s3.holdfast import on_s3
from benchmarks.s3.peers import Boto3, Pyarrow, S3fs, obstore_on_s3
from benchmarks.s3.works import PART_BYTES, Bucket, Engine


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of engine: what it is called, the packages that it needs, how to make one."""

    name: str
    packages: list[str]
    make: Callable[[Bucket], Engine]

    def versions(self) -> str:
        """Versions of its packages.

        Raises:
            LeftOutError: One of them is not installed.
        """
        try:
            return ", ".join(f"{package} {version(package)}" for package in self.packages)
        except PackageNotFoundError as error:
            raise LeftOutError(f"{error.name} is not installed") from error

    def warm_engine(self, bucket: Bucket) -> Engine:
        """Return an engine that has run every action once.

        Raises:
            LeftOutError: It could not.
        """
        try:
            engine = self.make(bucket)
            warm_up(engine, (4 << 10, 1 << 20, 2 * PART_BYTES + 1))
        except LeftOutError:
            raise
        except Exception as error:
            raise LeftOutError(reason_of(error)) from error
        return engine


def warm_up(engine: Engine, sizes: Iterable[int]) -> None:
    """Write, read and delete files of these sizes.

    Raises:
        LeftOutError: It did not read what was written.
    """
    engine.begin("warm-up")
    for number, file_bytes in enumerate(sizes):
        content = engine.read(engine.write(number, file_bytes), file_bytes)
        if content != file_bytes:
            raise LeftOutError(f"it read {content} of {file_bytes} bytes")
    engine.delete()


KINDS = {
    "holdfast": Kind("Holdfast", ["boto3", "obstore"], partial(on_s3, state_files="obstore")),
    "holdfast-boto3": Kind("Holdfast on boto3", ["boto3"], partial(on_s3, state_files="boto3")),
    "boto3": Kind("boto3", ["boto3", "s3transfer"], Boto3),
    "s3fs": Kind("s3fs", ["s3fs", "aiobotocore"], S3fs),
    "obstore": Kind("obstore", ["obstore"], obstore_on_s3),
    "pyarrow": Kind("pyarrow", ["pyarrow"], Pyarrow),
}
"""By the name that the command line knows; ratios are to the first one that takes part."""
