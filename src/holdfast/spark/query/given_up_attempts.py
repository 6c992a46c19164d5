"""Attempts that were given up, kept until the next checkpoint of their job can tell of them.

The query that failed has ended by then: what goes on from its last checkpoint is another run, with a coordinator
of its own. As long as that is in the same process, it gets to know.
"""

from holdfast.common import ProcessLock
from holdfast.errors import CheckpointError
from holdfast.spark_progress import MAX_ATTEMPTS, MAX_REASON_CHARACTERS, FailedAttempt


class GivenUpAttempts:
    """Attempts by the directory of their job. Threads may share it."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._attempts: dict[str, tuple[FailedAttempt, ...]] = {}

    def note(self, job_directory: str, attempt: FailedAttempt) -> None:
        """Keep an attempt; the oldest go."""
        with self._lock.current:
            known = self._attempts.get(job_directory, ())
            self._attempts[job_directory] = (*known, attempt)[-MAX_ATTEMPTS:]

    def of(self, job_directory: str) -> tuple[FailedAttempt, ...]:
        """The attempts that no checkpoint of the job has recorded yet."""
        with self._lock.current:
            return self._attempts.get(job_directory, ())

    def forget(self, job_directory: str, told: tuple[FailedAttempt, ...]) -> None:
        """Let go of what a completed checkpoint tells of."""
        with self._lock.current:
            left = tuple(each for each in self._attempts.pop(job_directory, ()) if each not in told)
            if left:
                self._attempts[job_directory] = left


GIVEN_UP = GivenUpAttempts()
"""The attempts of this process."""


def reason_of(error: BaseException) -> str:
    """Why an attempt was given up, in a few words.

    Texts of errors of other libraries and of users may hold secrets, and are not stored.
    """
    name = type(error).__name__
    if isinstance(error, CheckpointError) and error.args:
        return f"{name}: {error.args[0]}"[:MAX_REASON_CHARACTERS]
    return name[:MAX_REASON_CHARACTERS]
