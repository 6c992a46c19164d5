"""Access: the hosts that requests may name, a token, and headers that restrict browsers.

Without a token the server listens on this machine only, and refuses requests whose `Host` is another name: a page of
another site could let its name point to this machine. With a token each request has it as a bearer, or has the cookie that
the login gives out. A cookie is derived from the token, and not the token itself.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

SLASH = "\0"
"""An encoded slash in a part of the path, which does not end the part."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

_MAX_BODY_BYTES = 4096

_PUBLIC = frozenset({"/style.css"})

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Access:
    """The rules of access.

    Args:
        token: The secret that each request must prove to know; None if everyone on this machine may read.
    """

    def __init__(self, token: str | None) -> None:
        self._token = token
        key = (token or "").encode()
        self._session = hmac.new(key, b"holdfast serve: session", hashlib.sha256).hexdigest()
        name = hmac.new(key, b"holdfast serve: cookie", hashlib.sha256).hexdigest()
        # Ports share cookies: each token has its own.
        self._cookie = f"holdfast-{name[:8]}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names in `Host` that are allowed."""
        return LOOPBACK if self._token is None else ("*",)

    def protect(self, app: App) -> App:
        """Return the application with the rules applied to each request."""

        async def protected(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return

            async def send_with_headers(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    pairs = ((name.encode(), value.encode()) for name, value in _HEADERS.items())
                    message["headers"] = [*message["headers"], *pairs]
                await send(message)

            if not _split_path(scope):
                answer: Response | None = JSONResponse({"errors": ["not found"]}, 404)
            else:
                answer = await self._refusal(Request(scope, receive))
            await (answer or app)(scope, receive, send_with_headers)

        return protected

    async def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is not allowed, or that is a login; None if it is allowed."""
        if self._token is None or request.scope["path"] in _PUBLIC:
            return None
        if request.method == "POST" and request.scope["path"] == "/login":
            given = await _token_of_form(request)
            return self._start_session() if self._knows(given) else _login_page(is_wrong=True)
        given = request.query_params.get("token", "")
        if request.method == "GET" and request.scope["path"] == "/" and given:
            return self._start_session() if self._knows(given) else _login_page(is_wrong=True)
        if self._is_allowed(request.headers):
            return None
        if request.scope["path"] == "/":
            return _login_page(is_wrong=False)
        message = "this needs the token: Authorization: Bearer TOKEN"
        return JSONResponse({"errors": [message]}, 401, {"WWW-Authenticate": "Bearer"})

    def _knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), (self._token or "").encode())

    def _is_allowed(self, headers: Headers) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._knows(bearer.strip())
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        cookie = cookies.get(self._cookie)
        return cookie is not None and hmac.compare_digest(
            cookie.value.encode(), self._session.encode()
        )

    def _start_session(self) -> Response:
        answer = RedirectResponse("./", 303)
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="lax", path="/")
        return answer


def _split_path(scope: Scope) -> bool:
    """Keep encoded slashes apart from those that end a part of the path; returns False for a path that is not valid."""
    raw = scope.get("raw_path") or quote(scope["path"]).encode()
    try:
        parts = [
            unquote(part, errors="strict")
            for part in raw.decode("ascii").partition("?")[0].split("/")
        ]
    except UnicodeDecodeError:
        return False
    if any(SLASH in part or part in {".", ".."} for part in parts):
        return False
    scope["path"] = "/".join(part.replace("/", SLASH) for part in parts)
    return True


async def _token_of_form(request: Request) -> str:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            return ""
    return parse_qs(body.decode("ascii", "replace")).get("token", [""])[0].strip()


def _login_page(*, is_wrong: bool) -> Response:
    page = files("holdfast.cli.server").joinpath("login.html").read_text("utf-8")
    message = '<p class="bad" role="alert">That is not the token.</p>' if is_wrong else ""
    return HTMLResponse(page.replace("<!-- message -->", message), 401)
