import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import psutil
import pytest
from contracts.patience import HANGS_S

from holdfast.errors import InvalidRequestError
from holdfast.testing import HttpFaults, HttpRequest, http_faults

MIB = 1 << 20

CUT = (ConnectionError, http.client.HTTPException)


class Server(ThreadingHTTPServer):
    """Stores objects, and records the requests that it has performed.

    `/chunked` answers without a length, `/unchanged` with 304, `/sized?bytes=n` with n bytes,
    `/short` with fewer bytes than announced, `/closed` by closing the connection, `/refused` before
    it has read the body.
    """

    request_queue_size = 128  # with five, the default, some clients are refused

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.stored: dict[str, bytes] = {}
        self.performed: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.trailers: list[bytes] = []
        self.lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore disconnected clients."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_PUT(self) -> None:
        if self.path == "/refused":
            self.close_connection = True
            self.send(403, b"no")
            return
        if self.path.startswith("/big"):
            left = int(self.headers["Content-Length"])
            while left and (piece := self.rfile.read(min(left, MIB))):
                left -= len(piece)
            if left:
                self.close_connection = True
                return
            body = b""
        elif "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = self.read_chunks()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.stored[self.path] = body
        self.send(200, b"", ETag='"1"')

    def do_GET(self) -> None:
        if self.path == "/chunked":
            self.begin(200, **{"Transfer-Encoding": "chunked"})
            self.wfile.write(b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")
        elif self.path == "/unchanged":
            self.begin(304, ETag='"1"')
        elif self.path.startswith("/sized"):
            count = int(self.path.partition("=")[2])
            self.begin(200, **{"Content-Length": str(count)})
            for _ in range(count // MIB):
                self.wfile.write(bytes(MIB))
        elif self.path == "/short":
            self.begin(200, **{"Content-Length": "10"})
            self.wfile.write(b"abc")
            self.close_connection = True
        elif self.path == "/closed":
            self.close_connection = True
            self.begin(200, Connection="close")
            self.wfile.write(b"until the end")
        elif self.path in self.server.stored:
            self.send(200, self.server.stored[self.path])
        else:
            self.send(404, b"nothing")

    def do_HEAD(self) -> None:
        self.begin(200, **{"Content-Length": str(len(self.server.stored[self.path]))})

    def do_DELETE(self) -> None:
        self.server.stored.pop(self.path, None)
        self.begin(204)

    def read_chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while (line := self.rfile.readline()) != b"\r\n":
            self.server.trailers.append(line.strip())
        return body

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.begin(status, **{"Content-Length": str(len(body))}, **headers)
        self.wfile.write(body)

    def begin(self, status: int, **headers: str) -> None:
        with self.server.lock:
            self.server.performed.append(f"{self.command} {self.path}")
            self.server.headers.append(dict(self.headers.items()))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def faults(server: Server) -> Iterator[HttpFaults]:
    with http_faults(server.url) as faults:
        yield faults


@contextmanager
def connection_to(faults: HttpFaults) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(urlsplit(faults.url).netloc, timeout=HANGS_S)
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
def client(faults: HttpFaults) -> Iterator[http.client.HTTPConnection]:
    with connection_to(faults) as connection:
        yield connection


def ask(
    client: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    client.request(method, path, body)
    with client.getresponse() as response:
        return response.status, response.read()


def is_put(request: HttpRequest) -> bool:
    return request.method == "PUT"


def outcomes_of(faults: HttpFaults) -> list[tuple[str, int | None, bool]]:
    return [(request.method, request.status, request.performed) for request in faults.requests]


def test_requests_pass_through_unchanged_and_are_recorded(
    server: Server, faults: HttpFaults, client: http.client.HTTPConnection
) -> None:
    assert ask(client, "PUT", "/bucket//a%20b?uploads&x=%2F", b"12345") == (200, b"")
    assert server.stored == {"/bucket//a%20b?uploads&x=%2F": b"12345"}
    assert ask(client, "GET", "/missing") == (404, b"nothing")
    first, second = faults.requests
    assert (first.method, first.path, first.query) == (
        "PUT",
        "/bucket//a b",
        {"uploads": "", "x": "/"},
    )
    assert (first.status, first.performed, first.body_bytes) == (200, True, 5)
    assert (second.status, second.performed, second.body_bytes) == (404, True, 0)


def test_server_receives_signed_host(
    server: Server, faults: HttpFaults, client: http.client.HTTPConnection
) -> None:
    client.request("GET", "/x", headers={"Host": "bucket.example", "X-Twice": "1"})
    client.getresponse().read()
    assert server.headers[0]["Host"] == faults.requests[0].headers["host"] == "bucket.example"
    assert server.headers[0]["X-Twice"] == "1"


def test_answers_of_every_shape_pass_through(
    client: http.client.HTTPConnection,
) -> None:
    assert ask(client, "PUT", "/x", b"12345") == (200, b"")
    client.request("HEAD", "/x")
    with client.getresponse() as response:
        assert (response.headers["Content-Length"], response.read()) == ("5", b"")
    assert ask(client, "GET", "/chunked") == (200, b"abcdefg")
    assert ask(client, "GET", "/unchanged") == (304, b"")
    assert ask(client, "GET", "/closed") == (200, b"until the end")
    assert ask(client, "DELETE", "/x") == (204, b"")
    assert ask(client, "GET", "/x") == (404, b"nothing")


def test_one_connection_serves_many_requests(
    client: http.client.HTTPConnection,
) -> None:
    client.connect()
    kept = client.sock
    for number in range(20):
        assert ask(client, "PUT", f"/{number}", b"1") == (200, b"")
        assert client.sock is kept


def test_chunks_and_trailers_pass_through(
    server: Server, faults: HttpFaults, client: http.client.HTTPConnection
) -> None:
    client.putrequest("PUT", "/x")
    client.putheader("Transfer-Encoding", "chunked")
    client.putheader("Content-Encoding", "aws-chunked")
    client.putheader("X-Amz-Trailer", "x-amz-checksum-crc32c")
    client.endheaders()
    client.send(
        b"3;chunk-signature=0\r\nabc\r\n4\r\ndefg\r\n0\r\nx-amz-checksum-crc32c: AAAA\r\n\r\n"
    )
    with client.getresponse() as response:
        assert response.status == 200
    assert server.stored["/x"] == b"abcdefg"
    assert server.trailers == [b"x-amz-checksum-crc32c: AAAA"]
    assert faults.requests[0].body_bytes == 7
    assert ask(client, "GET", "/x") == (200, b"abcdefg")


def test_client_expecting_100_continue_receives_it(server: Server, faults: HttpFaults) -> None:
    address = urlsplit(faults.url)
    faults.answer(503, nth=2)
    for status in (b"200 OK", b"503 Service Unavailable"):
        with (
            socket.create_connection((str(address.hostname), address.port or 0)) as raw,
            raw.makefile("rb") as answer,
        ):
            raw.sendall(
                b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
            )
            assert answer.readline() == b"HTTP/1.1 100 Continue\r\n"
            assert answer.readline() == b"\r\n"
            raw.sendall(b"abc")
            assert answer.readline().strip() == b"HTTP/1.1 " + status
    assert server.performed == ["PUT /x"]
    assert "Expect" not in server.headers[0]


@pytest.mark.parametrize(
    "answer",
    [
        (400, "RequestTimeout"),
        (403, "AccessDenied"),
        (409, "ConditionalRequestConflict"),
        (412, "PreconditionFailed"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "SlowDown"),
        (504, "GatewayTimeout"),
        (200, "InternalError"),
    ],
)
@pytest.mark.parametrize("performed", [False, True])
def test_planned_answer_replaces_server_answer(
    server: Server,
    faults: HttpFaults,
    client: http.client.HTTPConnection,
    answer: tuple[int, str],
    performed: bool,  # noqa: FBT001
) -> None:
    status, code = answer
    faults.answer(status, performed=performed)
    answered, body = ask(client, "PUT", "/x", b"12345")
    assert answered == status
    assert f"<Error><Code>{code}</Code>".encode() in body
    assert server.stored == ({"/x": b"12345"} if performed else {})
    assert outcomes_of(faults) == [("PUT", status, performed)]
    assert faults.requests[0].body_bytes == 5
    kept = client.sock
    assert ask(client, "PUT", "/y", b"1") == (200, b"")
    assert client.sock is kept is not None


def test_planned_answer_has_given_code_and_headers(
    faults: HttpFaults, client: http.client.HTTPConnection
) -> None:
    faults.answer(404, code="NoSuchUpload", headers={"Retry-After": "7"})
    client.request("POST", "/x?uploadId=1")
    with client.getresponse() as response:
        assert response.headers["Retry-After"] == "7"
        assert b"<Code>NoSuchUpload</Code>" in response.read()
    faults.answer(404)
    client.request("HEAD", "/x")
    with client.getresponse() as response:
        assert (response.status, response.read()) == (404, b"")
        assert int(response.headers["Content-Length"]) > 0
    faults.answer(304)
    assert ask(client, "GET", "/x") == (304, b"")
    faults.answer(503)
    assert ask(client, "GET", "/x")[0] == 503


@pytest.mark.parametrize("performed", [False, True])
def test_a_reset_connection_is_cut_before_or_after_the_effect(
    server: Server,
    faults: HttpFaults,
    client: http.client.HTTPConnection,
    performed: bool,  # noqa: FBT001
) -> None:
    if performed:
        faults.lose_answer(is_put)
    else:
        faults.reset(is_put)
    with pytest.raises(ConnectionResetError):
        ask(client, "PUT", "/x", b"12345")
    client.close()
    assert server.stored == ({"/x": b"12345"} if performed else {})
    assert outcomes_of(faults) == [("PUT", None, performed)]
    assert ask(client, "PUT", "/y", b"1") == (200, b"")


def test_truncated_answer_announces_the_whole_length(
    server: Server, faults: HttpFaults, client: http.client.HTTPConnection
) -> None:
    server.stored["/x"] = b"abcdefg"
    for path, kept in (("/x", b"abc"), ("/x", b""), ("/chunked", b"abc")):
        faults.truncate(len(kept))
        with pytest.raises(http.client.IncompleteRead) as caught:
            ask(client, "GET", path)
        assert caught.value.partial == kept
        client.close()
    faults.truncate(7)
    assert ask(client, "GET", "/x") == (200, b"abcdefg")


def test_body_truncated_by_server_stays_truncated(client: http.client.HTTPConnection) -> None:
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(client, "GET", "/short")
    assert caught.value.partial == b"abc"


def test_a_flipped_bit_is_seen_once(
    server: Server, faults: HttpFaults, client: http.client.HTTPConnection
) -> None:
    server.stored["/x"] = b"abcdefg"
    faults.flip_bit(1, bit=5)
    faults.flip_bit(100)
    assert ask(client, "GET", "/x") == (200, b"aBcdefg")
    assert ask(client, "GET", "/x") == (200, b"abcdefg")
    faults.flip_bit(MIB + 1)
    assert ask(client, "GET", f"/sized?bytes={2 * MIB}")[1].index(1) == MIB + 1


def outcomes(client: http.client.HTTPConnection, count: int) -> list[int]:
    return [ask(client, "PUT", "/x", b"1")[0] for _ in range(count)]


def test_burst_affects_consecutive_requests(
    faults: HttpFaults, client: http.client.HTTPConnection
) -> None:
    faults.answer(503, times=3)
    assert outcomes(client, 5) == [503, 503, 503, 200, 200]


def test_fault_applies_to_the_named_requests(
    faults: HttpFaults, client: http.client.HTTPConnection
) -> None:
    faults.answer(500, lambda request: "uploads" in request.query, nth=2, times=2)
    paths = ["/x?uploads", "/x", "/x?uploads", "/x", "/x?uploads", "/x?uploads"]
    assert [ask(client, "GET", path)[0] for path in paths] == [404, 404, 500, 404, 500, 404]
    faults.answer(503, is_put, nth="every")
    assert outcomes(client, 3) == [503, 503, 503]
    assert ask(client, "GET", "/x")[0] == 404
    faults.clear()
    assert outcomes(client, 2) == [200, 200]


def test_plans_of_one_request_apply_in_order(
    server: Server, faults: HttpFaults, client: http.client.HTTPConnection
) -> None:
    seen: list[str] = []
    faults.delay(lambda: seen.append("before"))
    faults.answer(503)
    faults.delay(lambda: seen.append("never"))
    assert ask(client, "PUT", "/x", b"1")[0] == 503
    faults.delay(lambda: seen.append(f"after {server.performed[-1]}"), performed=True)
    faults.answer(500, performed=True)
    assert ask(client, "PUT", "/x", b"1")[0] == 500
    assert seen == ["before", "after PUT /x"]


@pytest.mark.parametrize("performed", [False, True])
def test_blocked_request_resumes_when_released(
    server: Server,
    faults: HttpFaults,
    client: http.client.HTTPConnection,
    performed: bool,  # noqa: FBT001
) -> None:
    reached, released = faults.blocking(is_put, performed=performed)
    with ThreadPoolExecutor(1) as pool, connection_to(faults) as other:
        putting = pool.submit(ask, client, "PUT", "/x", b"1")
        assert reached.wait(HANGS_S)
        assert ask(other, "GET", "/x")[0] == (200 if performed else 404)
        assert not putting.done()
        released.set()
        assert putting.result(HANGS_S) == (200, b"")


def test_requests_at_the_same_time_are_each_counted_once(
    server: Server, faults: HttpFaults
) -> None:
    faults.answer(503, is_put, times=30)

    def put(number: int) -> int:
        with connection_to(faults) as client:
            return [
                ask(client, "PUT", f"/{number}/{attempt}", b"1" * number)[0]
                for attempt in range(10)
            ].count(503)

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(put, range(16))) == 30
    assert len(faults.requests) == 160
    assert len(server.stored) == 130
    assert all(request.body_bytes == int(request.path.split("/")[1]) for request in faults.requests)


def test_big_bodies_are_streamed(faults: HttpFaults, client: http.client.HTTPConnection) -> None:
    process = psutil.Process()
    ask(client, "PUT", "/big", bytes(MIB))
    before = process.memory_info().rss
    peak = 0

    def pieces() -> Iterator[bytes]:
        nonlocal peak
        for _ in range(256):
            peak = max(peak, process.memory_info().rss)
            yield bytes(MIB)

    client.request("PUT", "/big", pieces(), {"Content-Length": str(256 * MIB)})
    assert client.getresponse().read() == b""
    assert faults.requests[-1].body_bytes == 256 * MIB
    client.request("GET", f"/sized?bytes={256 * MIB}")
    with client.getresponse() as response:
        read = 0
        while piece := response.read(MIB):
            read += len(piece)
            peak = max(peak, process.memory_info().rss)
    assert read == 256 * MIB
    assert peak - before < 32 * MIB


def test_answer_before_end_of_request_body_reaches_client(
    faults: HttpFaults, client: http.client.HTTPConnection
) -> None:
    assert ask(client, "PUT", "/refused", bytes(1000))[0] == 403
    assert faults.requests[0].status == 403


def test_stopped_server_looks_like_reset_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with http_faults(f"http://127.0.0.1:{port}") as faults, connection_to(faults) as client:
        with pytest.raises(CUT):
            ask(client, "GET", "/x")
        assert outcomes_of(faults) == [("GET", None, False)]


def test_disconnected_client_ends_its_request(server: Server, faults: HttpFaults) -> None:
    with connection_to(faults) as client:
        client.putrequest("PUT", "/big")
        client.putheader("Content-Length", "10")
        client.endheaders(b"123")
    with connection_to(faults) as client:
        assert ask(client, "PUT", "/y", b"1") == (200, b"")
    assert "PUT /big" not in server.performed


def end_while_idle(faults: HttpFaults, client: http.client.HTTPConnection) -> None:
    ask(client, "GET", "/x")


def end_after_faults(faults: HttpFaults, client: http.client.HTTPConnection) -> None:
    for plan in (faults.reset, faults.lose_answer):
        plan()
        with pytest.raises(CUT):
            ask(client, "GET", "/x")
        client.close()


def end_in_the_middle_of_a_body(faults: HttpFaults, client: http.client.HTTPConnection) -> None:
    client.request("GET", f"/sized?bytes={64 * MIB}")
    assert client.getresponse().read(1) == b"\0"


@pytest.mark.parametrize("end", [end_while_idle, end_after_faults, end_in_the_middle_of_a_body])
def test_it_leaves_no_thread_and_no_descriptor(
    server: Server, end: Callable[[HttpFaults, http.client.HTTPConnection], None]
) -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        with http_faults(server.url) as faults, connection_to(faults) as client:
            end(faults, client)
            address = urlsplit(faults.url)
    left = set(threading.enumerate()) - before
    assert "http faults" not in [thread.name for thread in left]
    local = {
        connection.laddr.port
        for connection in psutil.Process().net_connections("tcp")
        if connection.laddr and connection.status != psutil.CONN_TIME_WAIT
    }
    assert address.port not in local
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((str(address.hostname), address.port or 0))


def test_blocked_request_is_released_at_the_end(server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        with http_faults(server.url) as faults, connection_to(faults) as client:
            reached, _ = faults.blocking()
            asking = pool.submit(ask, client, "GET", "/x")
            assert reached.wait(HANGS_S)
        assert isinstance(asking.exception(HANGS_S), CUT)


def test_it_listens_on_loopback_only(faults: HttpFaults) -> None:
    listening = {
        connection.laddr.ip
        for connection in psutil.Process().net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr.port == urlsplit(faults.url).port
    }
    assert listening == {"127.0.0.1"}


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1:1/x"])
def test_other_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="must be http://host:port"), http_faults(url):
        pass


def test_a_count_below_one_is_refused(faults: HttpFaults) -> None:
    with pytest.raises(InvalidRequestError, match="must be >= 1"):
        faults.reset(nth=0)
    with pytest.raises(InvalidRequestError):
        faults.answer(503, times=0)
