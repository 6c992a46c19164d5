"""Inputs found by `make fuzz` for tests: a minimal set with the same coverage.

    python -m proof.corpora DIR          read DIR/<part of a reader's name>/, and write the archive

Coverage is the set of transitions between lines of Holdfast.
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
"""The inputs of all readers, as `<reader's name>/<number>`, before their checksums are updated."""

Transition = tuple[CodeType, int, int]
"""A transition from a line of code to another."""


def read_corpora() -> dict[str, list[bytes]]:
    """Read the inputs by the name of their reader."""
    corpora: dict[str, list[bytes]] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                corpora.setdefault(member.name.rpartition("/")[0], []).append(file.read())
    return corpora


def minimal_corpus(reader: Reader, inputs: list[bytes]) -> list[bytes]:
    """Return the inputs with coverage that earlier ones lack, the shortest first."""
    reached: set[Transition] = set()
    minimal = []
    for content in sorted(set(inputs), key=lambda content: (len(content), content)):
        transitions = _transitions(reader, content)
        if not transitions <= reached:
            reached |= transitions
            minimal.append(content)
    return minimal


def _transitions(reader: Reader, content: bytes) -> set[Transition]:
    transitions: set[Transition] = set()
    last: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        if frame.f_globals.get("__name__", "").partition(".")[0] != "holdfast":
            return None
        if event == "line":
            transitions.add((frame.f_code, last.get(frame, 0), frame.f_lineno))
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
    return transitions


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
            minimal = minimal_corpus(known[name], inputs)
            for number, content in enumerate(minimal):
                member = tarfile.TarInfo(f"{name}/{number}")
                member.size = len(content)
                out.addfile(member, io.BytesIO(content))
            print(f"{name}: {len(minimal)} of {len(inputs)} inputs, {sum(map(len, minimal))} bytes")
    print(f"{ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
