"""Bad bytes guided by coverage: inputs that reach a new line of a reader are changed further.

    make fuzz READER=segments SECONDS_EACH=600

`bad_bytes` changes valid inputs; this also changes earlier results. An input that breaks a reader ends the process with
its error and the file of the input.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-untyped]  # `make fuzz` brings it

with atheris.instrument_imports(include=["holdfast"]):
    from proof.readers import readers

from holdfast.errors import CheckpointError

_LONGEST_S, _MAX_MIB = 20, 2048
_MAX_BYTES = 1 << 16


def main() -> None:
    """Fuzz one reader; ends the process."""
    parser = argparse.ArgumentParser(prog="python -m proof.guided_bytes")
    parser.add_argument("reader", help="a part of its name")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--corpus", type=Path, help="directory of inputs to start from, and to extend"
    )
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-bytes-"))
    (reader,) = (reader for name, reader in readers(scratch).items() if options.reader in name)
    corpus = options.corpus or scratch / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, whole in enumerate(reader.whole.values()):
        (corpus / f"whole-{number}").write_bytes(whole)

    def try_input(content: bytes) -> None:
        try:
            # With old checksums the reader would refuse all inputs early.
            reader.read(reader.seal(content))
        except CheckpointError:
            return

    atheris.Setup(
        [
            sys.argv[0],
            str(corpus),
            f"-max_total_time={options.seconds}",
            f"-seed={options.seed}",
            f"-timeout={_LONGEST_S}",
            f"-rss_limit_mb={_MAX_MIB}",
            f"-max_len={_MAX_BYTES}",
            f"-artifact_prefix={scratch}/",
            "-print_final_stats=1",
        ],
        try_input,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
