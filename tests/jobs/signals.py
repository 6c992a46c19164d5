"""Events between the processes of a job: files, which are there whole or not at all."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

_LONGEST_S = 300.0


@dataclass(frozen=True, slots=True)
class Signals:
    """Events in a directory of their own.

    Attributes:
        directory: The directory.
    """

    directory: Path

    def give(self, name: str, text: str = "") -> bool:
        """Let an event happen; whether it had not happened before."""
        self.directory.mkdir(exist_ok=True)
        hidden = self.directory / f".{name}-{os.getpid()}"
        hidden.write_text(text)
        try:
            os.link(hidden, self.directory / name)
        except FileExistsError:
            return False
        finally:
            hidden.unlink()
        return True

    def is_given(self, name: str) -> bool:
        return (self.directory / name).exists()

    def text(self, name: str) -> str:
        """What an event that has happened came with."""
        return (self.directory / name).read_text()

    def wait(self, *names: str) -> str:
        """Wait until all of them have happened; what the last came with."""
        deadline = time.monotonic() + _LONGEST_S
        while not all(map(self.is_given, names)):
            assert time.monotonic() < deadline, f"{names} do not come"
            time.sleep(0.01)
        return self.text(names[-1])
