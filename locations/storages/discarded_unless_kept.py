"""The base of all our output streams: it discards a stream that is left without its success call."""

import warnings
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class DiscardedUnlessKept(ABC):
    """Leaving `with`, or being forgotten, discards what was written; forgetting also warns."""

    _finished = False
    """Whether the success call was made, or `close`: nothing more can be written."""

    @abstractmethod
    def close(self) -> None:
        """Discard, unless the success call was made; set `_finished`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._finished:
            self.close()  # first: where warnings are errors, the next line is the last
            warnings.warn(f"{self!r} was neither kept nor closed", ResourceWarning, stacklevel=2)
