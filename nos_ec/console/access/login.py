"""Logging in and out, and the check that every other request belongs to a session.

A wrong token is answered like a right one, but may be tried only so often (security.Throttle). The id in the cookie is
new after every login, so a cookie that somebody else has planted is worth nothing.
"""

from __future__ import annotations

import hmac
import re
from http import HTTPStatus
from urllib.parse import parse_qs, urlencode

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nos_ec.console.access.login_token import LoginTokens
from nos_ec.console.access.security import ATTEMPT_MS, FORM_BYTES_MAX, IS_TLS, Throttle, network_of
from nos_ec.console.access.sessions import Sessions
from nos_ec.console.view import VISITOR, View, Visitor
from nos_ec.core.errors import ConfigError

_log = structlog.get_logger(__name__)

WRONG = "That is not the token of this console."
TOO_MANY = "There were too many wrong tokens from your address. Try again in a few seconds."
STALE = "The form was too old. Please try again."
_OPEN = re.compile(r"/login|/static/.*")
"""Paths that need no session."""
_PLACE = re.compile(r"/(?![/\\])[\w/.?=&%+~*-]*", re.ASCII)
"""Where a login may lead: a page of the console, never another site."""


class LoginRequired:
    """ASGI middleware: finds the session of a request, and sends a browser without one to the login form."""

    def __init__(self, app: ASGIApp, tokens: LoginTokens, sessions: Sessions) -> None:
        self._app = app
        self._tokens = tokens
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        request = Request(scope)
        session_id = request.cookies.get(cookie_name(scope), "")
        try:
            owner = self._sessions.use(session_id, self._tokens.current()) if session_id else None
        except ConfigError as error:
            _log.error("nobody can use the console", error=str(error))
            refusal = PlainTextResponse("The tokens of the console cannot be read; its log has the reason.\n", 503)
            await refusal(scope, receive, send)
            return
        csrf = self._sessions.csrf(session_id) if session_id else ""
        scope[VISITOR] = Visitor(session_id, csrf, owner is not None, "" if owner is None else owner.operator)
        if owner is not None or _OPEN.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
        else:
            await _to_login(request)(scope, receive, send)


def _to_login(request: Request) -> Response:
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse("Your session has ended. Log in again.\n", HTTPStatus.UNAUTHORIZED)
    place = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = f"?{urlencode({'next': place})}" if place != "/" else ""
    return RedirectResponse(f"/login{query}", HTTPStatus.SEE_OTHER)


class Login:
    """The login form and what it does."""

    def __init__(self, view: View, tokens: LoginTokens, sessions: Sessions, throttle: Throttle) -> None:
        self._view = view
        self._tokens = tokens
        self._sessions = sessions
        self._throttle = throttle

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/login", self.show, methods=["GET"]),
            Route("/login", self.log_in, methods=["POST"]),
            Route("/logout", self.log_out, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        """Show the form."""
        if request.scope[VISITOR].is_logged_in:
            return RedirectResponse(_place(request.query_params.get("next", "")), HTTPStatus.SEE_OTHER)
        return self._form(request, "", HTTPStatus.OK, request.query_params.get("next", ""))

    async def log_in(self, request: Request) -> Response:
        """Begin a session for the right token."""
        form = await form_fields(request)
        visitor, place = request.scope[VISITOR], form.get("next", "")
        if not visitor.session_id or not self._sessions.csrf_matches(visitor.session_id, form.get("csrf", "")):
            return self._form(request, STALE, HTTPStatus.FORBIDDEN, place)
        address = request.client.host if request.client is not None else ""
        # A browser with which somebody has logged in before has attempts of its own. So others with the same address,
        # such as that of a proxy, cannot use them up.
        party = self._sessions.known_browser(visitor.session_id) or network_of(address)
        if not self._throttle.allows(party):
            answer = self._form(request, TOO_MANY, HTTPStatus.TOO_MANY_REQUESTS, place)
            answer.headers["Retry-After"] = str(-(-ATTEMPT_MS // 1000))
            return answer
        identity = self._tokens.find(form.get("token", ""))
        if identity is None:
            self._throttle.fail(party)
            _log.warning("a login with a wrong token was refused", address=address)
            return self._form(request, WRONG, HTTPStatus.FORBIDDEN, place)
        self._sessions.end(visitor.session_id)
        _log.info("an operator has logged in", address=address, operator=identity.operator)
        answer = RedirectResponse(_place(place), HTTPStatus.SEE_OTHER)
        _set_cookie(answer, request.scope, self._sessions.begin(identity))
        return answer

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        await own_form(request)
        self._sessions.end(request.scope[VISITOR].session_id)
        answer = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        is_tls = request.scope[IS_TLS]
        answer.delete_cookie(cookie_name(request.scope), secure=is_tls, httponly=True, samesite="lax")
        return answer

    def _form(self, request: Request, error: str, status: HTTPStatus, place: str) -> Response:
        """Return the form. It carries a value that only the browser with its cookie can send back."""
        new_id = ""
        if not request.scope[VISITOR].session_id:
            new_id = self._sessions.new_id()
            request.scope[VISITOR] = Visitor(new_id, self._sessions.csrf(new_id))
        answer = self._view.page(request, "login.html", "Log in", status=status, error=error, next=_place(place))
        if new_id:
            _set_cookie(answer, request.scope, new_id)
        return answer


def cookie_name(scope: Scope) -> str:
    """Return the name of the cookie with the session id. With TLS, browsers guarantee that `__Host-` cookies come from
    this host, and never send them without TLS."""
    return "__Host-nos-ec-console" if scope[IS_TLS] else "nos-ec-console"


def _set_cookie(answer: Response, scope: Scope, session_id: str) -> None:
    # Lax, not strict: a link to a page, in a ticket for example, must find the operator logged in. Forms have checks of
    # their own (security.SameOrigin, own_form).
    answer.set_cookie(cookie_name(scope), session_id, secure=scope[IS_TLS], httponly=True, samesite="lax")


async def own_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that a page of this session has shown. Raises HTTPException."""
    form = await form_fields(request)
    if not request.scope[VISITOR].csrf:
        raise HTTPException(HTTPStatus.FORBIDDEN, STALE)
    require_csrf(request, form.get("csrf", ""))
    return form


def require_csrf(request: Request, given: str) -> None:
    """Check that a form was shown by a page of this session; without a login, there are no sessions. Raises
    HTTPException."""
    csrf = request.scope.get(VISITOR, Visitor()).csrf
    if not hmac.compare_digest(csrf.encode(), given.encode("utf-8", "replace")):
        raise HTTPException(HTTPStatus.FORBIDDEN, STALE)


async def form_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form, which is limited while it is read; FormsFirst limits the time. Raises
    HTTPException."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > FORM_BYTES_MAX:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The form is too large.")
    except ClientDisconnect as error:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, "The form did not arrive.") from error
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=10, errors="replace")
    except ValueError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "The form cannot be read.") from error
    return {name: values[0] for name, values in fields.items()}


def _place(given: str) -> str:
    return given if _PLACE.fullmatch(given) else "/"
