"""Requests through obstore: the process that sends them, and the answers that its errors quote.

obstore has few classes of errors, and their text quotes the store's answer including secrets. So the callers read
only the status and the code from it, and never pass it on.
"""

import os
import re

# In the text of obstore's errors, the store's answer follows the first status. The second form is that of a file in a
# deletion of many.
_STATUS = re.compile(r"status code: (\d{3})|\(code: (\d{3})\)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NOT_SENT = re.compile(r"\bkind: Connect\b")

# In the text of errors of credentials: the machine's metadata server, or the cloud's token service.
_SOURCES_OF_TOKENS = ("169.254.169.254", "metadata.google.internal", "token request")

# Errors of rejected requests, or before a request was sent.
_CHANGED_NOTHING = {
    "AlreadyExistsError",
    "FileNotFoundError",
    "InvalidPathError",
    "NotSupportedError",
    "PermissionDeniedError",
    "PreconditionError",
    "UnauthenticatedError",
}

_is_used = False
_was_forked_in_use = False


def _note_fork() -> None:
    global _was_forked_in_use  # noqa: PLW0603  # of the process
    _was_forked_in_use = _was_forked_in_use or _is_used


os.register_at_fork(after_in_child=_note_fork)


def begin_use() -> bool:
    """Note that requests follow; returns False if they would hang.

    The first request starts threads of obstore. A process that is forked later waits for them forever, because they
    do not exist in it.
    """
    global _is_used  # noqa: PLW0603  # of the process
    if _was_forked_in_use:
        return False
    _is_used = True
    return True


def status_of(error: BaseException) -> int:
    """Return the HTTP status of the answer that an error quotes; 0 without an answer."""
    status = _STATUS.search(str(error))
    return int(status[1] or status[2]) if status else 0


def code_of(error: BaseException) -> str:
    """Return the store's error code, or an empty string."""
    code = _CODE.search(str(error))
    return code[1] if code else ""


def is_about_token(error: BaseException) -> bool:
    """Return whether obstore got no token to sign a request with."""
    return any(source in str(error) for source in _SOURCES_OF_TOKENS)


def was_not_performed(error: BaseException) -> bool:
    """Return whether a request was certainly not performed; False if unknown."""
    if type(error).__name__ in _CHANGED_NOTHING or is_about_token(error):
        return True
    status = status_of(error)
    if not status:
        return _NOT_SENT.search(str(error)) is not None
    return 300 <= status < 500 or status == 507 or code_of(error) == "SlowDown"
