"""A proxy between an HTTP client and its server that fails on demand."""

import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import InvalidRequestError
from holdfast.testing.faults import MAX_WAIT_S, Nth

_PIECE_BYTES = 1 << 18
"""Bytes of a body in memory at once."""

_HOP_BY_HOP = {"connection", "expect", "keep-alive", "proxy-connection"}
"""Headers for the proxy itself, which signatures do not cover."""

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


class Exchange(Protocol):
    """A running request, to which a fault is applied."""

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Read the whole request, and answer it without the server."""
        ...

    def reset(self) -> None:
        """Close the connection like a crashed host."""
        ...


_Effect = Callable[[Exchange], bool]
"""Applies a fault, and returns whether the request ends with it."""


def any_request(_: HttpRequest, /) -> bool:
    """Match all requests."""
    return True


@dataclass(slots=True)
class Plan:
    """A plan for some requests."""

    when: Matches
    first: int
    last: float
    before: _Effect | None = None
    after: _Effect | None = None
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

        def effect(exchange: Exchange) -> bool:
            exchange.answer(status, dict(headers or {}), body)
            return True

        self._plan(when, nth, times, effect, performed=performed)

    def reset(
        self,
        when: Matches = any_request,
        nth: Nth = "next",
        *,
        times: int = 1,
        performed: bool = False,
    ) -> None:
        """Reset the connection, before the body is read or after the server performed the request."""

        def effect(exchange: Exchange) -> bool:
            exchange.reset()
            return True

        self._plan(when, nth, times, effect, performed=performed)

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
        if isinstance(until, threading.Event):
            self._blocked.append(until)

        def effect(_: Exchange) -> bool:
            if not isinstance(until, threading.Event):
                until()
            elif not until.wait(MAX_WAIT_S):
                raise AssertionError(f"blocked for {MAX_WAIT_S} s without being released")
            return False

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
        self, when: Matches, nth: Nth, times: int, effect: _Effect, *, performed: bool
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


@contextmanager
def http_faults(server: str) -> Iterator[HttpFaults]:
    """Run a proxy for a server on this machine, with planned faults, until the block ends.

        with http_faults("http://127.0.0.1:9000") as faults:
            faults.lose_answer(lambda request: request.method == "PUT")
            client = boto3.client("s3", endpoint_url=faults.url)

    Bodies are streamed both ways. `Host` is forwarded unchanged, because signatures cover it;
    `Expect: 100-continue` is answered by the proxy.

    Args:
        server: `http://host:port`.

    Raises:
        InvalidRequestError: The URL has another form.
    """
    parts = urlsplit(server)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise InvalidRequestError(f"server must be http://host:port, got {server!r}")
    proxy = _Proxy(parts.hostname, parts.port or 80)
    try:
        yield proxy.faults
    finally:
        proxy.close()


class _Proxy:
    """Accepts connections, and serves each in a separate thread."""

    def __init__(self, host: str, port: int) -> None:
        self.server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._address = self._listener.getsockname()
        self.faults = HttpFaults(f"http://127.0.0.1:{self._address[1]}")
        self._lock = threading.Lock()
        self._is_closing = False
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, name="http faults", daemon=True)
        self._acceptor.start()

    def watch(self, connected: socket.socket) -> None:
        """Close the connection when the proxy closes."""
        with self._lock:
            if self._is_closing:
                raise ConnectionAbortedError("the proxy is closed")
            self._sockets.add(connected)

    def forget(self, connected: socket.socket | None) -> None:
        with self._lock:
            self._sockets -= {connected}

    def close(self) -> None:
        with self._lock:
            self._is_closing = True
            for connected in self._sockets:
                with suppress(OSError):  # the other side was faster
                    connected.shutdown(socket.SHUT_RDWR)
        self.faults.clear()
        with suppress(OSError), socket.create_connection(self._address):
            pass  # wakes the acceptor
        self._acceptor.join()
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            connected, _ = self._listener.accept()
            if self._is_closing:
                connected.close()
                return
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(
                target=self._serve, args=(connected,), name="http faults", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _serve(self, connected: socket.socket) -> None:
        # An error of the server's connection ends the client's, and vice versa.
        with suppress(OSError, HTTPException), connected:
            try:
                self.watch(connected)
                _Connection(connected, self)
            finally:
                self.forget(connected)


class _Connection(BaseHTTPRequestHandler):
    """A client's connection, with one connection to the server for each request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, connected: socket.socket, proxy: _Proxy) -> None:
        self._proxy = proxy
        self._server = HTTPConnection(*proxy.server)
        self._watched: socket.socket | None = None
        super().__init__(connected, ("", 0), None)  # type: ignore[arg-type]  # never used

    def handle(self) -> None:
        try:
            super().handle()
        finally:
            self._hang_up()

    def handle_one_request(self) -> None:
        self._is_awaited = False
        self.raw_requestline = self.rfile.readline(1 << 16)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self._target = self.requestline.split()[1]  # `path` has fewer slashes
        path, _, query = self._target.partition("?")
        self._request = HttpRequest(
            self.command,
            unquote(path),
            dict(parse_qsl(query, keep_blank_values=True)),
            {name.lower(): value for name, value in self.headers.items()},
        )
        self._body = self._read_body()
        plans = self._proxy.faults.begin(self._request)
        if any(plan.before(self) for plan in plans if plan.before):
            return
        with self._perform() as response:
            self._request.performed = True
            if any(plan.after(self) for plan in plans if plan.after):
                self._hang_up()
            else:
                self._pass_on(response, plans)

    def handle_expect_100(self) -> bool:
        self._is_awaited = True
        return True

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because `requests` has everything."""

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        for _ in self._body:
            pass
        has_body = status not in {204, 304}
        of_body = {"Content-Type": "application/xml", "Content-Length": str(len(body))}
        self._begin_answer(status, None, {**(of_body if has_body else {}), **headers}.items())
        if has_body and self.command != "HEAD":
            self.wfile.write(body)

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True

    def _read_body(self) -> Iterator[bytes]:
        """Yield the pieces of the request's body, with the framing of its chunks."""
        is_chunked = "chunked" in self._request.headers.get("transfer-encoding", "").lower()
        length = int(self._request.headers.get("content-length", 0))
        if self._is_awaited:
            self.send_response_only(100)
            self.end_headers()
        if not is_chunked:
            yield from self._read(length)
            return
        while size := int((line := self._read_line()).split(b";")[0], 16):
            yield line
            yield from self._read(size)
            yield self._read_line()
        while line.strip():  # trailers
            yield line
            line = self._read_line()
        yield line

    def _read(self, count: int) -> Iterator[bytes]:
        while count:
            piece = self.rfile.read1(min(count, _PIECE_BYTES))
            if not piece:
                raise ConnectionAbortedError("the client left")
            count -= len(piece)
            self._request.body_bytes += len(piece)
            yield piece

    def _read_line(self) -> bytes:
        line = self.rfile.readline(1 << 16)
        if not line:
            raise ConnectionAbortedError("the client left")
        return line

    def _perform(self) -> HTTPResponse:
        """Forward the request to the server."""
        server = self._connect()
        server.putrequest(self.command, self._target, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                server.putheader(name, value)
        server.putheader("Connection", "close")
        server.endheaders()
        is_read = True
        for piece in self._body:
            try:
                if is_read:
                    server.send(piece)
            except OSError:
                is_read = False  # a server may answer and close before it has read everything
        return server.getresponse()

    def _pass_on(self, response: HTTPResponse, plans: list[Plan]) -> None:
        """Forward the answer to the client, with planned damage."""
        limits = [plan.kept_bytes for plan in plans if plan.kept_bytes is not None]
        flipped_bits = [plan.flipped_bit for plan in plans if plan.flipped_bit]
        own = {*_HOP_BY_HOP, "transfer-encoding"}
        headers = [pair for pair in response.getheaders() if pair[0].lower() not in own]
        is_chunked = response.length is None
        if is_chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        self._begin_answer(response.status, response.reason, headers)
        sent = 0
        while piece := bytearray(response.read(_PIECE_BYTES)):
            for offset, bit in flipped_bits:
                if sent <= offset < sent + len(piece):
                    piece[offset - sent] ^= 1 << bit
            is_cut = any(sent + len(piece) > limit for limit in limits)
            if is_cut:
                del piece[min(limits) - sent :]
            sent += len(piece)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), bytes(piece)) if is_chunked else piece)
            if is_cut:
                break
        else:
            is_cut = bool(response.length)  # by the server
        if is_cut:
            self.close_connection = True
        elif is_chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _begin_answer(
        self, status: int, reason: str | None, headers: Iterable[tuple[str, str]]
    ) -> None:
        self._request.status = status
        self.send_response_only(status, reason)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def _connect(self) -> HTTPConnection:
        """Open a new connection to the server.

        The server may close an idle connection at the moment when it is used again, which would be an
        unplanned fault.
        """
        self._hang_up()
        self._server.sock = self._watched = socket.create_connection(self._proxy.server)
        self._watched.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._proxy.watch(self._watched)
        return self._server

    def _hang_up(self) -> None:
        self._proxy.forget(self._watched)
        self._server.close()
