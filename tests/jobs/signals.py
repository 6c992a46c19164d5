"""Events between the processes of a job: files, which are there whole or not at all."""

import os
from dataclasses import dataclass
from pathlib import Path

from contracts.patience import wait_until


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
        wait_until(lambda: all(map(self.is_given, names)), f"{names} do not come")
        return self.text(names[-1])
