"""Returns every error as `application/problem+json` (RFC 9457), whatever raised it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from nos_ec.api.models import Problem
from nos_ec.core.errors import (
    ConfigError,
    Conflict,
    Corrupt,
    InvalidInput,
    NosError,
    NoSpace,
    NotFound,
    Transient,
)

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 5
PATH_CHARS_MAX = 200
ROUTES = "/openapi.json lists all routes, and docs/API.md explains them"

_log = structlog.get_logger(__name__)

_STATUSES: tuple[tuple[type[NosError], int, str], ...] = (
    (InvalidInput, 400, "Invalid input"),
    (NotFound, 404, "Not found"),
    (Conflict, 409, "Conflict"),
    (NoSpace, 507, "No space"),
    (Transient, 503, "Try again"),
    (Corrupt, 500, "Corrupt"),
    (ConfigError, 500, "Wrong configuration"),
)
"""Order matters: each class comes before its base class."""


def register(app: FastAPI) -> None:
    """Make the app return every error as a problem."""
    app.add_exception_handler(NosError, _on_nos_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_wrong_parameters)
    app.add_exception_handler(Exception, _on_bug)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route in the form that FastAPI expects."""
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {CONTENT_TYPE: schema}} for status in statuses
    }


def _on_nos_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, NosError)
    return answer(error)


def answer(error: NosError) -> Response:
    """Return the problem response for one of the product's errors."""
    status, title = next((status, title) for kind, status, title in _STATUSES if isinstance(error, kind))
    if status >= 500:
        _log.warning("request failed", error=str(error), **error.facts())
    headers = {"Retry-After": str(RETRY_AFTER_S)} if isinstance(error, Transient) else {}
    return _problem(status, type(error).__name__, title, str(error), headers, error.facts())


def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = {404: "no such route", 405: "this route answers only GET"}.get(error.status_code)
    if why is not None:
        # The router raised it with an empty detail. An object or block missing from the store raises a NosError.
        detail = f"{request.method} {request.scope['path'][:PATH_CHARS_MAX]!r}: {why}; {ROUTES}"
        error = HTTPException(error.status_code, detail, error.headers)
    return of_http(error)


def of_http(error: HTTPException) -> Response:
    """Return the problem response for an HTTP error."""
    title = "Invalid parameters" if error.status_code == 422 else HTTPStatus(error.status_code).phrase
    return _problem(error.status_code, title.title(), title, str(error.detail), dict(error.headers or {}))


def _on_wrong_parameters(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    reasons = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
    return _problem(422, "InvalidParameters", "Invalid parameters", "; ".join(reasons), {})


def _on_bug(_request: Request, error: Exception) -> Response:
    _log.error("request failed because of a bug", exc_info=error)
    return _problem(500, "Bug", "Internal error", "a bug: the trace is in the log of the API; please report it", {})


def _problem(
    status: int, name: str, title: str, detail: str, headers: dict[str, str], facts: dict[str, Any] | None = None
) -> Response:
    slug = "".join(f"-{c.lower()}" if c.isupper() else c for c in name.replace(" ", "")).strip("-")
    problem = Problem(type=f"urn:nos-ec:problem:{slug}", title=title, status=status, detail=detail, **(facts or {}))
    return JSONResponse(problem.model_dump(exclude_none=True), status, headers, CONTENT_TYPE)
