"""A lock that a fork of the process does not inherit."""

import os
import threading


class ProcessLock:
    """A lock that each process has for itself: a forked process has a free lock, whoever held the parent's.

    Attributes:
        current: This process's lock, for a `with` block.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.current = threading.Lock()
