"""Planned faults of HTTP requests, and matchers of requests by S3 operation."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from holdfast.errors import InvalidRequestError
from holdfast.testing.faults import Nth, waiting_for

_CODES = {
    200: "InternalError",
    400: "RequestTimeout",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}
"""S3's error code for a status; 200 is for requests that fail after the start of their answer."""


@dataclass(slots=True)
class HttpRequest:
    """A request that arrived, and its outcome.

    Attributes:
        method: `GET`, `PUT`, ...
        path: Path with percent signs decoded, without the query.
        query: Decoded parameters by name; "" for a parameter without a value, as in `?uploads`.
        headers: Headers by lower-case name.
        performed: Whether the server has answered it.
        status: Status that the client received; None if it has not received one, yet or because of a
            reset.
        body_bytes: Number of bytes read of the request's body, including an encoding such as
            `aws-chunked`.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    performed: bool = False
    status: int | None = None
    body_bytes: int = 0


Matches = Callable[[HttpRequest], object]
"""Returns whether a fault applies to a request; called before its body is read, for one request at a time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The proxy's own answer; without a status it closes the connection like a crashed host."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


Effect = Callable[[], Answer | None]
"""Applies a fault; returns an answer if the request ends with it."""


def apply_effects(effects: Iterable[Effect | None]) -> Answer | None:
    """Apply faults in their order until one ends the request; returns its answer."""
    return next((answer for effect in effects if effect and (answer := effect())), None)


def any_request(_: HttpRequest, /) -> bool:
    """Match all requests."""
    return True


@dataclass(slots=True)
class Plan:
    """A plan for some requests."""

    when: Matches
    first: int
    last: float
    before: Effect | None = None
    after: Effect | None = None
    kept_bytes: int | None = None
    flipped_bit: tuple[int, int] | None = None
    matched: int = 0

    def takes(self, request: HttpRequest) -> bool:
        if not self.when(request):
            return False
        self.matched += 1
        return self.first <= self.matched <= self.last


@dataclass(slots=True)
class HttpFaults:
    """Planned faults of requests, and the requests so far.

    A fault applies to requests that `when` matches; `nth` selects among those, counted from 1
    since the fault was planned: the `"next"` one, the one with that number, or `"every"` one. `times` is
    the number of consecutive requests from there. Several faults of a request are applied in the order
    of their planning, until one ends the request.

    Attributes:
        url: URL of the proxy for clients.
        requests: All requests in order of arrival, including failed ones.
    """

    url: str
    requests: list[HttpRequest] = field(default_factory=list)
    _plans: list[Plan] = field(default_factory=list, repr=False)
    _blocked: list[threading.Event] = field(default_factory=list, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def answer(
        self,
        status: int,
        when: Matches = any_request,
        nth: Nth = "next",
        *,
        times: int = 1,
        performed: bool = False,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer with a status and an S3 error.

        S3 answers with status 200 and an error in the body if a long request fails late.

        Args:
            status: The status.
            when: Matches requests.
            nth: The selected requests of these.
            times: Number of consecutive requests, for a burst of failures.
            performed: Whether the server performs the request first; its answer is lost.
            code: S3's code; by default the usual one for the status.
            headers: Additional headers, such as `Retry-After`.
        """
        code = code or _CODES.get(status) or HTTPStatus(status).phrase.replace(" ", "")
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{code}</Code><Message>as planned</Message></Error>"
        ).encode()
        answer = Answer(status, dict(headers or {}), body)
        self._plan(when, nth, times, lambda: answer, performed=performed)

    def reset(
        self,
        when: Matches = any_request,
        nth: Nth = "next",
        *,
        times: int = 1,
        performed: bool = False,
    ) -> None:
        """Reset the connection, before the body is read or after the server performed the request."""
        self._plan(when, nth, times, Answer, performed=performed)

    def lose_answer(
        self, when: Matches = any_request, nth: Nth = "next", *, times: int = 1
    ) -> None:
        """Let the server perform the request, and reset the connection instead of answering."""
        self.reset(when, nth, times=times, performed=True)

    def truncate(
        self, kept_bytes: int, when: Matches = any_request, nth: Nth = "next", *, times: int = 1
    ) -> None:
        """Close the connection after the first bytes of the answer's body.

        The headers announce the whole body. A shorter body is unchanged.
        """
        self._add(when, nth, times).kept_bytes = kept_bytes

    def flip_bit(
        self,
        offset: int,
        when: Matches = any_request,
        nth: Nth = "next",
        *,
        times: int = 1,
        bit: int = 0,
    ) -> None:
        """Flip one bit of the answer's body.

        Args:
            offset: Position of the byte; a shorter body is unchanged.
            when: Matches requests.
            nth: The selected requests of these.
            times: Number of consecutive requests.
            bit: Position of the bit in the byte, from 0 for the lowest to 7.
        """
        self._add(when, nth, times).flipped_bit = (offset, bit)

    def delay(
        self,
        until: threading.Event | Callable[[], object],
        when: Matches = any_request,
        nth: Nth = "next",
        *,
        times: int = 1,
        performed: bool = False,
    ) -> None:
        """Delay the request, or its answer, until the event is set or the callable returns.

        It does not sleep, so the test controls the time.
        """
        wait = waiting_for(until, self._blocked)

        def effect() -> None:
            wait()

        self._plan(when, nth, times, effect, performed=performed)

    def blocking(
        self, when: Matches = any_request, nth: Nth = "next", *, performed: bool = False
    ) -> tuple[threading.Event, threading.Event]:
        """Block a request: it sets the first event and waits for the second."""
        reached, released = threading.Event(), threading.Event()
        self.delay(reached.set, when, nth, performed=performed)
        self.delay(released, when, nth, performed=performed)
        return reached, released

    def clear(self) -> None:
        """Remove all plans, and release blocked requests."""
        with self._lock:
            self._plans.clear()
        for event in self._blocked:
            event.set()

    def begin(self, request: HttpRequest) -> list[Plan]:
        """Record a request and return its plans; called by the proxy."""
        with self._lock:
            self.requests.append(request)
            return [plan for plan in self._plans if plan.takes(request)]

    def _plan(
        self, when: Matches, nth: Nth, times: int, effect: Effect, *, performed: bool
    ) -> None:
        plan = self._add(when, nth, times)
        if performed:
            plan.after = effect
        else:
            plan.before = effect

    def _add(self, when: Matches, nth: Nth, times: int) -> Plan:
        first = nth if isinstance(nth, int) else 1
        if first < 1 or times < 1:
            raise InvalidRequestError(
                f"nth and times must be >= 1, got nth={nth!r} and times={times}"
            )
        plan = Plan(when, first, float("inf") if nth == "every" else first + times - 1)
        with self._lock:
            self._plans.append(plan)
        return plan


_BY_PARAMETER = {
    "uploadId": {
        "PUT": "UploadPart",
        "POST": "CompleteMultipartUpload",
        "DELETE": "AbortMultipartUpload",
        "GET": "ListParts",
    },
    "uploads": {"POST": "CreateMultipartUpload", "GET": "ListMultipartUploads"},
    "delete": {"POST": "DeleteObjects"},
    "versions": {"GET": "ListObjectVersions"},
    "versioning": {"GET": "GetBucketVersioning", "PUT": "PutBucketVersioning"},
    "list-type": {"GET": "ListObjectsV2"},
}
"""Operations by their distinctive query parameter, then by method."""

_COPIES = {"UploadPart": "UploadPartCopy", "PutObject": "CopyObject"}

_PLAIN = {
    "Object": {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject"},
    "Bucket": {"PUT": "CreateBucket", "GET": "GetBucket", "HEAD": "HeadBucket"},
}

S3_OPERATIONS = frozenset(
    {
        *(name for methods in _BY_PARAMETER.values() for name in methods.values()),
        *(name for methods in _PLAIN.values() for name in methods.values()),
        *_COPIES.values(),
        "DeleteObject",
        "DeleteBucket",
    }
)
"""Names of the distinguishable operations."""


def s3_operation_of(request: HttpRequest) -> str:
    """Return the S3 operation of a request, such as `UploadPart`; paths have the form `/bucket/key`."""
    thing = "Object" if request.path.strip("/").partition("/")[2] else "Bucket"
    kind = next((name for name in _BY_PARAMETER if name in request.query), "")
    names = _BY_PARAMETER[kind] if kind else _PLAIN[thing]
    name = names.get(request.method, "?" if kind else request.method.capitalize() + thing)
    return _COPIES.get(name, name) if "x-amz-copy-source" in request.headers else name


def s3_operation(name: str) -> Callable[[HttpRequest], bool]:
    """Return a matcher of an S3 operation's requests, for `HttpFaults`.

    Raises:
        InvalidRequestError: The operation is unknown.
    """
    if name not in S3_OPERATIONS:
        raise InvalidRequestError(
            f"operation must be one of {', '.join(sorted(S3_OPERATIONS))}, got {name!r}"
        )
    return lambda request: s3_operation_of(request) == name
