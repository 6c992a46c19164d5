"""A proxy between an HTTP client and its server that fails on demand."""

import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import InvalidRequestError
from holdfast.testing.request_faults import Answer, HttpFaults, HttpRequest, Plan, apply_effects

_THREADS = "http faults"

_PIECE_BYTES = 1 << 18
"""Bytes of a body in memory at once."""

_HOP_BY_HOP = {"connection", "expect", "keep-alive", "proxy-connection"}
"""Headers for the proxy itself, which signatures do not cover."""


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
    acceptor = threading.Thread(target=proxy.serve_forever, args=(0.01,), name=_THREADS)
    acceptor.start()
    try:
        yield proxy.faults
    finally:
        proxy.shutdown()
        acceptor.join()
        proxy.close()


class _Proxy(ThreadingTCPServer):
    """Serves each client's connection in a separate thread."""

    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.upstream = (host, port)
        self.faults = HttpFaults(f"http://127.0.0.1:{self.server_address[1]}")
        self._lock = threading.Lock()
        self._is_closing = False
        self._open: set[socket.socket] = set()

    @contextmanager
    def watch(self, connected: socket.socket) -> Iterator[None]:
        """Shut a connection down if the proxy closes during the block."""
        with self._lock:
            if self._is_closing:
                raise ConnectionAbortedError("the proxy is closed")
            self._open.add(connected)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(connected)

    def close(self) -> None:
        with self._lock:
            self._is_closing = True
            for connected in self._open:
                with suppress(OSError):  # the other side was faster
                    connected.shutdown(socket.SHUT_RDWR)
        self.faults.clear()
        self.server_close()  # waits for all threads

    def finish_request(self, request: Any, client_address: Any) -> None:
        threading.current_thread().name = _THREADS
        # An error of the server's connection ends the client's, and vice versa.
        with suppress(OSError, HTTPException), self.watch(request):
            super().finish_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        request.close()  # without the regular end of the data before a reset

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # the base's
        raise  # noqa: PLE0704  # the error that is being handled, so that the test sees it


class _Connection(BaseHTTPRequestHandler):
    """A client's connection, with one connection to the server for each request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Proxy

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
        plans = self.server.faults.begin(self._request)
        if answer := apply_effects(plan.before for plan in plans):
            self._answer(answer)
            return
        with self._perform() as response:
            self._request.performed = True
            if answer := apply_effects(plan.after for plan in plans):
                self._answer(answer)
            else:
                self._pass_on(response, plans)

    def handle_expect_100(self) -> bool:
        self._is_awaited = True
        return True

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because `requests` has everything."""

    def _answer(self, answer: Answer) -> None:
        if answer.status is None:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            return
        for _ in self._body:
            pass
        has_body = answer.status not in {204, 304}
        of_body = {"Content-Type": "application/xml", "Content-Length": str(len(answer.body))}
        headers = {**(of_body if has_body else {}), **answer.headers}
        self._begin_answer(answer.status, None, headers.items())
        if has_body and self.command != "HEAD":
            self.wfile.write(answer.body)

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

    @contextmanager
    def _perform(self) -> Iterator[HTTPResponse]:
        """Forward the request to the server, over a new connection.

        The server may close an idle connection at the moment when it is used again, which would be an
        unplanned fault.
        """
        with closing(HTTPConnection(*self.server.upstream)) as upstream:
            upstream.connect()
            with self.server.watch(upstream.sock):
                upstream.putrequest(
                    self.command, self._target, skip_host=True, skip_accept_encoding=True
                )
                for name, value in self.headers.items():
                    if name.lower() not in _HOP_BY_HOP:
                        upstream.putheader(name, value)
                upstream.putheader("Connection", "close")
                upstream.endheaders()
                is_read = True
                for piece in self._body:
                    try:
                        if is_read:
                            upstream.send(piece)
                    except OSError:
                        is_read = (
                            False  # a server may answer and close before it has read everything
                        )
                with upstream.getresponse() as response:
                    yield response

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
