"""Inputs that `make fuzz` has come to, the fewest that reach all of what those reach: kept for tests.

    python -m proof.corpora DIR          look through DIR/<part of a reader's name>/, and write the archive

Two inputs reach the same if they go from the same lines of Holdfast to the same lines.
"""

import argparse
import io
import sys
import tarfile
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from holdfast.errors import CheckpointError
from proof.readers import Reader, readers

ARCHIVE = Path(__file__).parents[1] / "tests" / "data" / "corpora.tar.xz"
"""The inputs of all readers, as `<reader's name>/<number>`, before their checksums are made anew."""

Way = tuple[CodeType, int, int]
"""From a line of code to a line."""


def read_corpora() -> dict[str, list[bytes]]:
    """The inputs by the reader's name."""
    corpora: dict[str, list[bytes]] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                corpora.setdefault(member.name.rpartition("/")[0], []).append(file.read())
    return corpora


def fewest(reader: Reader, inputs: list[bytes]) -> list[bytes]:
    """The inputs that reach something which none before them reaches, the shortest first."""
    reached: set[Way] = set()
    kept = []
    for content in sorted(set(inputs), key=lambda content: (len(content), content)):
        ways = _ways(reader, content)
        if not ways <= reached:
            reached |= ways
            kept.append(content)
    return kept


def _ways(reader: Reader, content: bytes) -> set[Way]:
    ways: set[Way] = set()
    last: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        if frame.f_globals.get("__name__", "").partition(".")[0] != "holdfast":
            return None
        if event == "line":
            ways.add((frame.f_code, last.get(frame, 0), frame.f_lineno))
            last[frame] = frame.f_lineno
        return trace

    sealed = reader.seal(content)
    sys.settrace(trace)
    try:
        reader.read(sealed)
    except CheckpointError:
        pass
    finally:
        sys.settrace(None)
    return ways


def main() -> None:
    """Write the archive."""
    parser = argparse.ArgumentParser(prog="python -m proof.corpora")
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(ARCHIVE, "w:xz", preset=9) as out:
        known = readers(Path(scratch))
        for directory in sorted(options.directory.iterdir()):
            (name,) = (name for name in known if directory.name in name)
            inputs = [file.read_bytes() for file in sorted(directory.iterdir())]
            kept = fewest(known[name], inputs)
            for number, content in enumerate(kept):
                member = tarfile.TarInfo(f"{name}/{number}")
                member.size = len(content)
                out.addfile(member, io.BytesIO(content))
            print(f"{name}: {len(kept)} of {len(inputs)} inputs, {sum(map(len, kept))} bytes")
    print(f"{ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
