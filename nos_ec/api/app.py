"""The routes and their server. All routes are GET requests that only read: this API cannot change anything."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.staticfiles import StaticFiles

from nos_ec import __version__
from nos_ec.api import explain_examples, models, problems
from nos_ec.api.access import Token
from nos_ec.api.answer import EXAMPLE_BLOCK_ID
from nos_ec.api.host_check import LoopbackHosts
from nos_ec.api.readings import ACCOUNTS_MAX, PAGE_MAX, Readings
from nos_ec.api.request_limit import REQUESTS_MAX, RequestLimit
from nos_ec.api.safe_answers import SafeAnswers
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX, BlockId, ObjectKey
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.explain.blocks import BlockExplanation
from nos_ec.engine.explain.objects import ObjectExplanation
from nos_ec.monitoring.exposition import CONTENT_TYPE
from nos_ec.monitoring.health import Answer
from nos_ec.monitoring.monitor import Monitor
from nos_ec.monitoring.web_server import WebServer, open_listener

STOP_WAIT_S = 5
IDLE_WAIT_S = 15
MS_MAX = (1 << 53) - 1
"""The largest integer that JSON carries exactly everywhere."""
_BLOCK_PATTERN = "^[0-9a-f]{32}$"

Credentials = Annotated[
    HTTPAuthorizationCredentials | None,
    Depends(HTTPBearer(auto_error=False, description="The token of api.token or api.token_file.")),
]
BlockName = Annotated[str, Path(pattern=_BLOCK_PATTERN, examples=[EXAMPLE_BLOCK_ID])]
BucketName = Annotated[str, Query(min_length=1, max_length=BUCKET_BYTES_MAX, examples=["photos"])]
ObjectName = Annotated[str, Query(min_length=1, max_length=NAME_BYTES_MAX, examples=["2026/a.jpg"])]
AfterName = Annotated[
    str, Query(max_length=BUCKET_BYTES_MAX, description="`next_after` of the previous page; empty: from the start.")
]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="Maximum number of entries in the page.")]


def make_app(readings: Readings, monitor: Monitor, token: Token | None, requests_max: int = REQUESTS_MAX) -> FastAPI:
    """Return the application. Without a token, it answers everyone who can reach it under a loopback name or address,
    and the caller must make sure that only local users can."""
    app = _DescribedApi(
        title="nos_ec admin API",
        version=__version__,
        description="Shows the state of a nos_ec store. Changes nothing. Errors are `application/problem+json`.",
        # FastAPI's documentation pages load scripts from other sites. The page of /docs needs none.
        docs_url=None,
        redoc_url=None,
    )
    problems.register(app)
    app.add_middleware(RequestLimit, requests_max=requests_max)
    if token is None:
        app.add_middleware(LoopbackHosts)
    _add_health(app, monitor)
    _add_metrics(app, monitor, token)
    _add_store(app, readings, token)
    _add_usage(app, readings, token)
    _add_blocks(app, readings, token)
    app.mount("/docs", StaticFiles(packages=[("nos_ec.api", "docs")], html=True))
    # Last, so that it is outside of the others: their refusals have its headers, too.
    app.add_middleware(SafeAnswers)
    return app


class _DescribedApi(FastAPI):
    """The application, with its whole description."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document. FastAPI keeps it, and makes it again when routes were added."""
        document = super().openapi()
        _describe(document)
        return document


class Server(WebServer):
    """The server of the API."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        """Raise ConfigError if the address cannot be used."""
        super().__init__(app, "api", open_listener("api", host, port), stop_wait_s=STOP_WAIT_S, idle_wait_s=IDLE_WAIT_S)


def _only_known_parameters(request: Request) -> None:
    """Refuse unknown parameters, so that a misspelt filter is not silently ignored."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    unknown = sorted(request.query_params.keys() - known)
    if unknown:
        allowed = f"use {', '.join(sorted(known))}" if known else "this path takes none"
        raise HTTPException(422, f"no such parameter: {', '.join(unknown)}; {allowed}")


def _guard(token: Token | None) -> list[Any]:
    """Return the dependencies of routes that require the token."""
    if token is None:
        return []

    def check(credentials: Credentials) -> None:
        if credentials is None or not token.matches(credentials.credentials):
            raise HTTPException(
                401, "send the API's token: Authorization: Bearer TOKEN", headers={"WWW-Authenticate": "Bearer"}
            )

    return [Depends(check)]


def _responses(token: Token | None, *statuses: int) -> dict[int | str, dict[str, Any]]:
    return problems.responses(*(() if token is None else (401,)), *statuses)


def _add_health(app: FastAPI, monitor: Monitor) -> None:
    unwell: dict[int | str, dict[str, Any]] = {503: {"model": models.HealthModel, "description": "Unhealthy"}}

    def answer(found: Answer, response: Response) -> models.HealthModel:
        response.status_code = 200 if found.good else 503
        return models.HealthModel(**found.data(reasons=False))

    @app.get("/livez", tags=["health"], responses=unwell)
    async def livez(response: Response) -> models.HealthModel:
        """Return whether the loops of the process are still running. Needs no token."""
        # async, so that it needs no thread of the pool: slow queries may occupy all of them.
        return answer(monitor.health.alive(), response)

    @app.get("/readyz", tags=["health"], responses=unwell)
    def readyz(response: Response) -> models.HealthModel:
        """Return whether the store can serve requests. Needs no token."""
        return answer(monitor.health.ready(), response)


def _add_metrics(app: FastAPI, monitor: Monitor, token: Token | None) -> None:
    text: dict[int | str, dict[str, Any]] = {
        200: {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
    }

    @app.get(
        "/metrics",
        tags=["health"],
        dependencies=_guard(token),
        response_class=Response,
        responses={**text, **_responses(token)},
    )
    def metrics() -> Response:
        """Return all metrics in the text format of Prometheus."""
        return Response(monitor.metrics.text(), media_type=CONTENT_TYPE)


def _add_store(app: FastAPI, readings: Readings, token: Token | None) -> None:
    guard = [*_guard(token), Depends(_only_known_parameters)]

    @app.get("/v1/status", tags=["store"], dependencies=guard, responses=_responses(token, 422, 503))
    def status() -> models.Status:
        """Return utilisation and its parts, and the number of blocks in each state."""
        return readings.status()

    @app.get("/v1/backlog", tags=["store"], dependencies=guard, responses=_responses(token, 422, 503))
    def backlog() -> models.Backlog:
        """Return the objects and bytes that wait to be packed, and the consumer group's lag."""
        return readings.backlog()

    @app.get("/v1/events", tags=["store"], dependencies=guard, responses=_responses(token, 422, 503))
    def events(
        since_ms: Annotated[int, Query(ge=0, le=MS_MAX, description="Only events since this time (Unix ms).")] = 0,
    ) -> models.Events:
        """Return what has happened to the store, the newest first: GC runs, scrubs, dumps, checks, lost leases, changes
        to GC's limits. The store keeps the last 50 of each kind, without GC runs that found nothing to do."""
        return readings.events(since_ms)

    @app.get("/v1/daemons", tags=["store"], dependencies=guard, responses=_responses(token, 422, 503))
    def daemons() -> models.Daemons:
        """Return the producers, consumers and GC daemons that were alive in the last day, and what each has set
        aside."""
        return readings.daemons()

    @app.get("/v1/histograms", tags=["store"], dependencies=guard, responses=_responses(token, 422, 503))
    def histograms() -> models.Histograms:
        """Return histograms of how full the blocks are and how many holes they have."""
        return readings.histograms()

    @app.get("/v1/gc/plan", tags=["store"], dependencies=guard, responses=_responses(token, 422, 503))
    def gc_plan(limit: Limit = 100) -> models.GcPlan:
        """Return what a GC run would do now, as decided from rows and headers."""
        return readings.gc_plan(limit)

    @app.get("/v1/object", tags=["store"], dependencies=guard, responses=_responses(token, 400, 404, 422, 503))
    def find_object(bucket: BucketName, name: ObjectName) -> models.ObjectDetail:
        """Return where an object's bytes are. The limits of bucket and name are in bytes of UTF-8."""
        return readings.object(ObjectKey(bucket, name))

    @app.get(
        "/v1/object/explanation", tags=["store"], dependencies=guard, responses=_responses(token, 400, 404, 422, 503)
    )
    def explain_object(bucket: BucketName, name: ObjectName) -> ObjectExplanation:
        """Return why an object is where it is, and what happens to it next. Reads the landing copy of an object that
        waits to be packed. docs/OPERATIONS.md lists the reasons."""
        return readings.explain_object(ObjectKey(bucket, name))


def _add_usage(app: FastAPI, readings: Readings, token: Token | None) -> None:
    guard = [*_guard(token), Depends(_only_known_parameters)]

    @app.get("/v1/usage/buckets", tags=["usage"], dependencies=guard, responses=_responses(token, 422, 503))
    def usage_of_buckets(after: AfterName = "", limit: Limit = 100) -> models.UsagePage:
        """Return one page of the metered buckets, by name: what they hold, and which share of their quotas that is."""
        return readings.usage_of_buckets(after, limit)

    @app.get("/v1/usage/bucket", tags=["usage"], dependencies=guard, responses=_responses(token, 404, 422, 503))
    def usage_of_bucket(bucket: BucketName) -> models.Use:
        """Return what a metered bucket holds, and which share of its quota that is."""
        return readings.usage_of_bucket(bucket)

    @app.get("/v1/usage/accounts", tags=["usage"], dependencies=guard, responses=_responses(token, 422, 503))
    def usage_of_accounts(
        after: AfterName = "",
        limit: Annotated[int, Query(ge=1, le=ACCOUNTS_MAX, description="Maximum number of accounts.")] = 100,
    ) -> models.UsagePage:
        """Return one page of the accounts with quotas, by name: what their buckets hold, and which share of the quotas
        that is."""
        return readings.usage_of_accounts(after, limit)


def _add_blocks(app: FastAPI, readings: Readings, token: Token | None) -> None:
    guard = [*_guard(token), Depends(_only_known_parameters)]

    @app.get("/v1/blocks", tags=["blocks"], dependencies=guard, responses=_responses(token, 422, 503))
    def blocks(
        after: Annotated[
            str | None, Query(pattern=_BLOCK_PATTERN, description="`next_after` of the previous page.")
        ] = None,
        limit: Limit = 100,
        kind: BlockKind | None = None,
        state: BlockState | None = None,
        hole_ratio_min: Annotated[float, Query(ge=0, le=1)] = 0,
    ) -> models.BlockPage:
        """Return one page of blocks in order of id."""
        return readings.blocks(_block_id(after) if after else None, limit, kind, state, hole_ratio_min)

    @app.get("/v1/blocks/{block}", tags=["blocks"], dependencies=guard, responses=_responses(token, 404, 422, 503))
    def block(block: BlockName) -> models.BlockDetail:
        """Return one block, decoded from its headers."""
        return readings.block(_block_id(block))

    @app.get(
        "/v1/blocks/{block}/explanation",
        tags=["blocks"],
        dependencies=guard,
        responses=_responses(token, 404, 422, 503),
    )
    def explain_block(block: BlockName) -> BlockExplanation:
        """Return why a block is not collected, and what GC would do with it. docs/OPERATIONS.md lists the reasons."""
        return readings.explain_block(_block_id(block))

    @app.get(
        "/v1/blocks/{block}/entries", tags=["blocks"], dependencies=guard, responses=_responses(token, 404, 422, 503)
    )
    def entries(
        block: BlockName,
        after: Annotated[
            int, Query(ge=-1, le=1 << 31, description="`next_after` of the previous page; -1: from the start.")
        ] = -1,
        limit: Limit = 100,
    ) -> models.EntryPage:
        """Return one page of the objects in a block, in order of offset."""
        return readings.entries(_block_id(block), after, limit)


def _block_id(text: str) -> BlockId:
    return BlockId(bytes.fromhex(text))


def _describe(document: dict[str, Any]) -> None:
    """Make Problem the schema of every error in the OpenAPI document, and add examples. Idempotent."""
    schemas = document["components"]["schemas"]
    schemas["Problem"] = models.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas["ObjectExplanation"]["examples"] = [explain_examples.OBJECT]
    schemas["BlockExplanation"]["examples"] = [explain_examples.BLOCK]
    # Every error is returned as a Problem; FastAPI's own error schemas are never used.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
