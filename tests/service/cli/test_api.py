"""The admin API on a real store: right figures, bounded lists, errors of one shape, no access without the token,
and nothing that can be changed through it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, assume, given, settings
from hypothesis.errors import Unsatisfiable
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr, TypeAdapter
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from nos_ec.adapters.local.devices.device_format import PROBE_AT
from nos_ec.api import explain_examples, models
from nos_ec.api.access import Token, find_token
from nos_ec.api.app import Server, make_app
from nos_ec.api.readings import PAGE_MAX, Readings
from nos_ec.api.request_limit import REQUESTS_MAX
from nos_ec.cli.app import run
from nos_ec.composition.operator_side import OperatorSide
from nos_ec.composition.wiring import System
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.quotas.quota import Quota, account_record, encode
from nos_ec.engine.explain.blocks import BlockExplanation
from nos_ec.engine.explain.objects import ObjectExplanation
from nos_ec.monitoring.health import HIDDEN
from nos_ec.ports.metadata import AccessKey, BlockRow, CannedAcl, DocumentKind, KeyState, Sums
from nos_ec.settings import ApiSettings, without_settings
from nos_gc.assemble import gc_collector, gc_service
from tests.rig.at_rest import end_log
from tests.rig.dev_servers import free_port
from tests.rig.notify_socket import NotifySocket
from tests.rig.waiting import until
from tests.service.cli.test_endpoints import UNEQUAL, expected_names, look_for_lost_shards
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench

TOKEN = "a-token-of-more-than-16-characters"
Operation = APIOperation[Any, Any, Any, Any]
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


def app_of(system: System, token: Token | None, requests_max: int = REQUESTS_MAX) -> FastAPI:
    monitor = system.operator.monitor("api", writes=False)
    system.operator.watch_store(monitor)
    monitor.health.started()
    return make_app(Readings(system, gc_collector(system), age_ms_max=0), monitor, token, requests_max)


@contextmanager
def serve(app: FastAPI, **headers: str) -> Iterator[httpx.Client]:
    """A client of the app over real HTTP."""
    with (
        Server(app, "127.0.0.1", 0) as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=WAIT_S_MAX) as client,
    ):
        yield client


class Api:
    """A client that sends the token."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def __call__(self, path: str, **query: Any) -> Any:
        reply = self.client.get(path, params=query)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def refused(self, path: str, status: int, **query: Any) -> models.Problem:
        reply = self.client.get(path, params=query)
        assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json"), reply.text
        problem = models.Problem.model_validate_json(reply.content)
        assert problem.status == status
        return problem


@pytest.fixture
def api(system: System) -> Iterator[Api]:
    with serve(app_of(system, Token(TOKEN)), **AUTHORISED) as client:
        yield Api(client)


def fill(bench: Bench, system: System) -> None:
    """Packed objects, a large one, an empty one, holes, and some objects that still wait."""
    bench.put_some(system, 200)
    bench.put(system, "large", bench.data(3 * 8 * STRIPE))
    bench.put(system, "empty", b"")
    bench.pack(system)
    for key in list(bench.acknowledged)[20:120]:
        bench.delete(system, key)
    bench.put_some(system, 15, prefix="waiting")


# --- figures -------------------------------------------------------------------------------------------------------
def test_an_offer_of_http_2_is_ignored_silently(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """The offer is that of `curl --http2`."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    for _ in range(2):
        assert api.client.get("/v1/status", headers=offer).status_code == 200
    assert [record for record in caplog.records if "uvicorn" in record.name] == []


def test_status_matches_the_command(api: Api, bench: Bench, system: System, capfd: pytest.CaptureFixture[str]) -> None:
    fill(bench, system)
    assert run(["--config", str(bench.config), "scrub", "--rate", "0"]) == 0
    assert run(["--config", str(bench.config), "metadata", "dump"]) == 0
    found = api("/v1/status")
    assert found["scrub"] is not None
    assert found["newest_dump_ms"] > 0
    capfd.readouterr()
    assert run(["--config", str(bench.config), "status", "--json"]) == 0
    said = json.loads(capfd.readouterr().out.splitlines()[-1])
    for name in found.keys() - {"geometry", "computed_at_ms", "free_bytes", "landing_free_bytes"}:
        assert found[name] == said[name], name
    assert found["live_bytes"] + found["dead_bytes"] + found["overhead_bytes"] == found["stripes"] * STRIPE
    assert found["geometry"]["chunk_size"] == CHUNK
    assert found["free_bytes"] > 0
    assert found["landing_free_bytes"] > 0


def test_an_empty_store_has_no_ratios(api: Api) -> None:
    status = api("/v1/status")
    assert (status["utilisation"], status["hole_ratio"], status["stripes"], status["blocks"]) == (None, None, 0, [])
    assert api("/v1/blocks") == {"blocks": [], "next_after": None}
    histograms = api("/v1/histograms")
    assert (histograms["blocks"], sum(bucket["blocks"] for bucket in histograms["utilisation"])) == (0, 0)
    assert api("/v1/gc/plan")["blocks"] == []


def test_backlog(api: Api, bench: Bench, system: System) -> None:
    fill(bench, system)
    bench.produce(system)
    bench.put_some(system, 5, prefix="late")
    backlog = api("/v1/backlog")
    assert (backlog["landed_objects"], backlog["queued_objects"], backlog["lag_messages"]) == (5, 15, 15)
    waiting = sum(len(data) for key, data in bench.acknowledged.items() if key.name.startswith(("waiting", "late")))
    assert backlog["landed_bytes"] + backlog["queued_bytes"] == waiting


def test_histograms_count_every_block_once(api: Api, bench: Bench, system: System) -> None:
    fill(bench, system)
    rows = [row for row in system.metadata.list_blocks(None, 1000) if row.stripes]
    found = api("/v1/histograms")
    assert (found["blocks"], found["stripes"]) == (len(rows), sum(row.stripes for row in rows))
    for name in ("utilisation", "hole_ratio"):
        buckets = found[name]
        assert sum(bucket["blocks"] for bucket in buckets) == len(rows)
        assert sum(bucket["stripes"] for bucket in buckets) == found["stripes"]
        assert buckets[-1]["up_to"] == 1
    fullest = max(row.live_bytes / (row.stripes * STRIPE) for row in rows)
    bounds = [bucket["up_to"] for bucket in found["utilisation"] if bucket["blocks"]]
    assert bounds[-1] == min(bucket["up_to"] for bucket in found["utilisation"] if bucket["up_to"] >= fullest)


# --- blocks --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
def test_pages_of_blocks_have_every_block_once(api: Api, bench: Bench, system: System, limit: int) -> None:
    fill(bench, system)
    wanted = [row.block_id.hex() for row in system.metadata.list_blocks(None, 1000)]
    assert len(wanted) >= 4
    assert [block["block"] for block in pages(api, "/v1/blocks", "blocks", limit=limit)] == wanted


def test_blocks_can_be_filtered(api: Api, bench: Bench, system: System) -> None:
    fill(bench, system)
    rows = system.metadata.list_blocks(None, 1000)
    large = pages(api, "/v1/blocks", "blocks", limit=1, kind="large")
    assert {block["block"] for block in large} == {row.block_id.hex() for row in rows if row.kind.value == "large"}
    assert len(large) >= 3
    holes = pages(api, "/v1/blocks", "blocks", limit=1, kind="fresh", hole_ratio_min=0.2)
    assert {block["block"] for block in holes} == {
        row.block_id.hex() for row in rows if row.kind.value == "fresh" and row.hole_ratio >= 0.2
    }
    assert pages(api, "/v1/blocks", "blocks", limit=5, state="fenced") == []


def pages(api: Api, path: str, items: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for _ in range(1000):
        page = api(path, **query)
        assert len(page[items]) <= query["limit"]
        found += page[items]
        if page["next_after"] is None:
            return found
        query["after"] = page["next_after"]
    raise AssertionError("the pages do not end")


def test_a_block_is_decoded_from_its_headers(api: Api, bench: Bench, system: System) -> None:
    fill(bench, system)
    live: dict[tuple[str, str], dict[str, Any]] = {}
    dead = 0
    before = system.blocks.counters()
    for row in system.metadata.list_blocks(None, 1000):
        detail = api(f"/v1/blocks/{row.block_id.hex()}")
        assert (detail["damaged_stripes"], detail["unconfirmed_objects"]) == ([], 0)
        assert sum(group["stripe_count"] for group in detail["groups"]) == row.stripes
        assert sum(group["data_bytes"] for group in detail["groups"]) == row.live_bytes + row.dead_bytes
        empty = sum(group[f"{where}_bytes"] for group in detail["groups"] for where in ("front", "gap", "end"))
        assert empty == row.overhead_bytes
        entries = pages(api, f"/v1/blocks/{row.block_id.hex()}/entries", "entries", limit=7)
        assert len(entries) == sum(group["entries"] for group in detail["groups"])
        assert sum(entry["live"] for entry in entries) == sum(group["live_entries"] for group in detail["groups"])
        assert sum(entry["length"] for entry in entries if entry["live"]) == row.live_bytes
        assert [entry["offset"] for entry in entries] == sorted(entry["offset"] for entry in entries)
        assert all(entry["in_header"] for entry in entries)
        for entry in entries:
            if entry["live"]:
                live[entry["bucket"], entry["name"]] = entry
            else:
                dead += 1
                assert (entry["bucket"], entry["name"]) == (None, None)
    packed = {key for key, data in bench.acknowledged.items() if data and not key.name.startswith("waiting")}
    assert live.keys() == {(key.bucket, key.name) for key in packed}
    assert dead == 100
    read = system.blocks.counters().shard_bytes - before.shard_bytes
    assert read < system.metadata.totals().stripes * STRIPE, "headers only, though each was read many times over"


def test_a_damaged_header_is_reported(api: Api, bench: Bench, system: System) -> None:
    """Objects that only a row places in the block are shown, too."""
    fill(bench, system)
    row = next(row for row in system.metadata.list_blocks(None, 1000) if row.kind.value == "fresh" and row.live_objects)
    for shard in sorted((bench.folder / "store" / "blocks").glob(f"shard-*/*/{row.block_id.hex()}"))[:4]:
        content = bytearray(shard.read_bytes())
        content[4096:] = bytes(len(content) - 4096)
        shard.write_bytes(content)
    detail = api(f"/v1/blocks/{row.block_id.hex()}")
    assert detail["damaged_stripes"]
    assert detail["unconfirmed_objects"] > 0
    entries = pages(api, f"/v1/blocks/{row.block_id.hex()}/entries", "entries", limit=1000)
    assert sum(not entry["in_header"] for entry in entries) == detail["unconfirmed_objects"]
    assert sum(entry["live"] for entry in entries) == row.live_objects


# --- objects, GC ---------------------------------------------------------------------------------------------------
def test_the_location_of_an_object(api: Api, bench: Bench, system: System) -> None:
    fill(bench, system)
    for key, data in bench.acknowledged.items():
        found = api("/v1/object", bucket=key.bucket, name=key.name)
        row = system.metadata.get(key)
        assert (found["size"], found["state"], found["md5"]) == (len(data), row.state.value, row.md5.hex())
        assert found["attributes"] == {}
        assert sum(place["length"] for place in found["places"]) == (0 if found["landing"] else len(data))
        for place in found["places"]:
            block = BlockId(bytes.fromhex(place["block"]))
            assert system.blocks.read(block, place["offset"], place["length"]) in data
    assert len(api("/v1/object", bucket="b", name="large")["places"]) > 1
    assert api("/v1/object", bucket="b", name="empty")["state"] == "empty"
    given = {"content-type": "text/plain", "ö": "'\" <&>"}
    system.client.store().put(ObjectKey("b", "with"), BytesIO(b"x"), encode_attributes(given))
    assert api("/v1/object", bucket="b", name="with")["attributes"] == given
    bench.put(system, "ä//ö #?%2F", b"odd")
    assert api("/v1/object", bucket="b", name="ä//ö #?%2F")["landing"]


def test_objects_and_blocks_are_explained_as_by_the_command(
    api: Api, bench: Bench, system: System, capfd: pytest.CaptureFixture[str]
) -> None:
    def said(target: str) -> Any:
        capfd.readouterr()
        assert run(["--config", str(bench.config), "explain", target, "--json"]) == 0
        return json.loads(capfd.readouterr().out.splitlines()[-1])

    fill(bench, system)
    bench.produce(system)
    reasons = set()
    waiting = [key for key in bench.acknowledged if key.name.startswith("waiting")][:2]
    for key in [ObjectKey("b", "large"), ObjectKey("b", "empty"), next(iter(bench.acknowledged)), *waiting]:
        found, wanted = api("/v1/object/explanation", bucket=key.bucket, name=key.name), said(str(key))
        assert found.keys() == wanted.keys()
        for name in ("version", "state", "reason", "landing_copy", "places", "block"):
            assert found[name] == wanted[name], name
        reasons.add(found["reason"])
    assert reasons == {"large", "empty", "packed", "no_consumer"}
    for row in system.metadata.list_blocks(None, 1000):
        path, wanted = f"/v1/blocks/{row.block_id.hex()}/explanation", said(row.block_id.hex())
        times = ("explained_ms", "next")
        assert {**api(path), **dict.fromkeys(times)} == {**wanted, **dict.fromkeys(times)}
    assert "was deleted" in api.refused("/v1/object/explanation", 404, bucket="b", name="none").detail
    assert api.refused(f"/v1/blocks/{'0' * 32}/explanation", 404).block == "0" * 32


def test_the_gc_plan_matches_the_command(
    api: Api, bench: Bench, system: System, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(bench, system)
    for key in [key for key in bench.acknowledged if not key.name.startswith("waiting")][:-3]:
        bench.delete(system, key)
    plan = api("/v1/gc/plan")
    capfd.readouterr()
    assert run(["--config", str(bench.config), "gc", "plan", "--json"]) == 0
    said = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert len(plan["blocks"]) == plan["candidates"] >= 2
    for name, value in said.items():
        assert plan[name] == value, name
    shorter = api("/v1/gc/plan", limit=1)
    assert shorter["blocks"] == plan["blocks"][:1]
    assert shorter["candidates"] == plan["candidates"]


# --- errors --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "query", "status", "says"),
    [
        ("/v1/blocks/" + "0" * 32, {}, 404, "0000"),
        ("/v1/blocks/" + "0" * 32 + "/entries", {}, 404, "0000"),
        ("/v1/blocks/nothex", {}, 422, "path.block"),
        ("/v1/object", {"bucket": "b", "name": "none"}, 404, "b/none"),
        ("/v1/object", {"bucket": "b/c", "name": "x"}, 400, "without '/'"),
        ("/v1/object", {"bucket": "b", "name": "../x"}, 400, "refused"),
        ("/v1/object", {"bucket": "b"}, 422, "query.name"),
        ("/v1/blocks", {"limit": PAGE_MAX + 1}, 422, "query.limit"),
        ("/v1/blocks", {"limit": 0}, 422, "query.limit"),
        ("/v1/blocks", {"hole_ratio_min": "nan"}, 422, "query.hole_ratio_min"),
        ("/v1/blocks", {"after": "xyz"}, 422, "query.after"),
        ("/v1/blocks", {"state": "lost"}, 422, "query.state"),
        ("/v1/blocks", {"sate": "open"}, 422, "no such parameter: sate; use after"),
        ("/v1/status", {"limit": 5}, 422, "this path takes none"),
        ("/nothing", {}, 404, "GET '/nothing': no such route; /openapi.json lists all routes"),
        ("/v1/statuses", {}, 404, "GET '/v1/statuses': no such route; "),
        ("/" + "x" * 1000, {}, 404, "x" * 199 + "': no such route; "),
    ],
)
def test_errors_have_one_shape(api: Api, path: str, query: dict[str, Any], status: int, says: str) -> None:
    problem = api.refused(path, status, **query)
    assert says in problem.detail
    kinds = {400: "invalid-input", 404: "not-found", 422: "invalid-parameters"}
    assert problem.type == f"urn:nos-ec:problem:{kinds[status]}"


def test_an_error_carries_what_it_concerns(api: Api) -> None:
    problem = api.refused("/v1/object", 404, bucket="b", name="no/such")
    assert problem.model_dump(exclude_none=True).keys() == {"type", "title", "status", "detail", "bucket", "name"}
    assert (problem.bucket, problem.name) == ("b", "no/such")
    problem = api.refused(f"/v1/blocks/{'ab' * 16}", 404)
    assert (problem.block, problem.name, problem.settings) == ("ab" * 16, None, None)


def test_an_unreachable_store_is_not_a_bug(api: Api, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise Transient("metadata: db:3306 does not answer")

    monkeypatch.setattr(system.metadata, "totals", away)
    problem = api.refused("/v1/status", 503)
    assert (problem.type, problem.detail) == ("urn:nos-ec:problem:transient", "metadata: db:3306 does not answer")
    assert api.client.get("/v1/status").headers["retry-after"]


def test_everything_but_the_lag_is_reported_while_the_message_log_is_away(
    bench: Bench, system: System, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_self: object) -> int:
        raise Transient("message log: broker:9092 does not answer")

    bench.put_some(system, 3)
    monkeypatch.setattr(OperatorSide, "lag", away)
    assert (api("/v1/backlog")["landed_objects"], api("/v1/backlog")["lag_messages"]) == (3, None)
    assert api("/v1/status")["landing_deletions"] == 0
    metrics = api.client.get("/metrics").text
    assert "nos_ec_store_landed_objects 3.0" in metrics
    assert "nos_ec_store_lag_messages" not in metrics


def test_a_bug_shows_no_traceback(api: Api, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(system.metadata, "totals", broken)
    problem = api.refused("/v1/status", 500)
    assert "secret" not in problem.detail
    assert "log" in problem.detail


# --- access --------------------------------------------------------------------------------------------------------
def routes(app: FastAPI) -> list[str]:
    return sorted(app.openapi()["paths"])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"X-Token": TOKEN},
    ],
)
def test_requests_without_the_token_are_refused(system: System, headers: dict[str, str]) -> None:
    app = app_of(system, Token(TOKEN))
    open_paths = {"/livez", "/readyz"}
    with serve(app, **headers) as client:
        for path in routes(app):
            reply = client.get(path.replace("{block}", "0" * 32), params={"bucket": "b", "name": "n"})
            if path in open_paths:
                assert reply.json() == {"ok": True, "problems": {}}
            else:
                assert reply.status_code == 401, path
                assert reply.headers["www-authenticate"] == "Bearer"
                assert reply.headers["content-type"] == "application/problem+json"
    assert open_paths < set(routes(app))


def test_without_a_token_all_requests_are_answered(system: System) -> None:
    with serve(app_of(system, None)) as client:
        assert client.get("/v1/status").status_code == 200


def test_which_token_is_used(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o640)
    for found in (find_token(ApiSettings(token=SecretStr(TOKEN))), find_token(ApiSettings(token_file=file))):
        assert found is not None
        assert found.matches(TOKEN)
        assert not found.matches(TOKEN + "\n")
        assert not found.matches("")
        assert TOKEN not in repr(vars(found))
    assert find_token(ApiSettings(anonymous=True)) is None
    assert find_token(ApiSettings(anonymous=True, host="::1")) is None
    assert find_token(ApiSettings(anonymous=True, token=SecretStr(TOKEN))) is not None


OWN_HOSTS = ["127.0.0.1", "127.0.0.1:9480", "localhost", "LocalHost:80", "api.localhost", "[::1]:9480"]
OTHER_HOSTS = ["evil.example", "evil.example:9480", "127.0.0.1.evil.example", "10.0.0.1", "localhost@evil.example", "["]


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_without_a_token_only_names_of_this_machine_are_answered(system: System, host: str) -> None:
    with serve(app_of(system, None), Host=host) as client:
        assert client.get("/v1/status").status_code == 200


@pytest.mark.parametrize("host", [*OTHER_HOSTS, ""])
def test_without_a_token_a_browser_cannot_be_made_to_read_names(system: System, host: str) -> None:
    """DNS rebinding: a page's own name resolves to this machine, and the browser sends it as the Host."""
    bucket_and_name = {"bucket": "b", "name": "n"}
    system.client.store().put_many([(ObjectKey(**bucket_and_name), b"data")])
    with serve(app_of(system, None), Host=host) as client:
        for path in ("/v1/object", "/v1/blocks", "/metrics", "/openapi.json"):
            answer = client.get(path, params=bucket_and_name if path == "/v1/object" else {})
            assert answer.status_code == 421
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["type"] == "urn:nos-ec:problem:misdirected-request"
        assert client.get("/livez").status_code == 200
    with serve(app_of(system, Token(TOKEN)), Host=host, **AUTHORISED) as client:
        assert client.get("/v1/object", params=bucket_and_name).status_code == 200, "the page has no token"


def test_unusable_tokens_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    refused = {
        "needs a token.*create one with": ApiSettings(),
        "both set": ApiSettings(token=SecretStr(TOKEN), token_file=file),
        "at least 16": ApiSettings(token=SecretStr("short")),
        "printable ASCII": ApiSettings(token=SecretStr("ä" * 20)),
        "read by every user": ApiSettings(token_file=file),
        "cannot be read": ApiSettings(token_file=tmp_path / "none"),
        "only on this machine": ApiSettings(anonymous=True, host="0.0.0.0"),
    }
    for says, wrong in refused.items():
        with pytest.raises(ConfigError, match=says):
            find_token(wrong)


# --- nothing can be changed ----------------------------------------------------------------------------------------
def device_content(path: Path) -> bytes:
    """What a device of the landing log holds. Without the page that every process writes to see whether it works."""
    data = path.read_bytes()
    return data[:PROBE_AT] + data[PROBE_AT + PAGE :]


def dump(bench: Bench) -> tuple[list[str], list[str], list[tuple[str, int, int | str]]]:
    """The databases as SQL, and every other file with its size and time of change; a device of the landing log with a
    hash of what it holds."""
    root = bench.folder / "store"
    databases = []
    for name in ("metadata.db", "log.db"):
        with closing(sqlite3.connect(root / name)) as connection:
            databases.append(list(connection.iterdump()))
    files = [
        (
            str(path),
            path.stat().st_size,
            sha256(device_content(path)).hexdigest() if path.name == "device0" else path.stat().st_mtime_ns,
        )
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.startswith(("metadata.db", "log.db")) and path.name != "slots-shm"
    ]
    return databases[0], databases[1], files


def test_all_routes_only_read(system: System) -> None:
    methods = {method for path in app_of(system, None).openapi()["paths"].values() for method in path}
    assert methods == {"get"}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_no_other_method_is_answered(system: System, method: str) -> None:
    app = app_of(system, None)
    with serve(app) as client:
        for path in routes(app):
            reply = client.request(method, path.replace("{block}", "0" * 32))
            assert reply.status_code == 405, path
            assert reply.headers["allow"] == "GET"
            assert reply.headers["content-type"] == "application/problem+json"
            assert (
                f"{method} '{path.replace('{block}', '0' * 32)}': this route answers only GET; "
                in reply.json()["detail"]
            )


def test_no_request_changes_anything(bench: Bench, system: System, api: Api) -> None:
    fill(bench, system)
    end_log(system)
    before = dump(bench)
    assert len(before[0]) > 100
    for row in system.metadata.list_blocks(None, 1000):
        api(f"/v1/blocks/{row.block_id.hex()}")
        api(f"/v1/blocks/{row.block_id.hex()}/entries")
        api(f"/v1/blocks/{row.block_id.hex()}/explanation")
    for path in ("/v1/status", "/v1/backlog", "/v1/histograms", "/v1/blocks", "/v1/gc/plan", "/livez", "/readyz"):
        api(path)
    assert api.client.get("/metrics").status_code == 200
    for key in bench.acknowledged:
        api("/v1/object", bucket=key.bucket, name=key.name)
    for name in ("large", "empty"):
        api("/v1/object/explanation", bucket="b", name=name)
    for key in list(bench.acknowledged)[:3] + list(bench.acknowledged)[-3:]:
        api("/v1/object/explanation", bucket=key.bucket, name=key.name)
    assert dump(bench) == before
    assert gc_service(system).run_once().blocks_deleted >= 0
    assert dump(bench) != before, "the dump would not notice a change"


def test_usage_and_quotas(api: Api, bench: Bench, system: System) -> None:
    metadata = system.metadata
    metadata.count_usage()
    for bucket, quota in (("a", Quota()), ("b", Quota(hard_bytes=4000, hard_objects=5)), ("c", Quota(soft_objects=1))):
        metadata.create_bucket(bucket, "ann", CannedAcl.PRIVATE, 1)
        metadata.set_bucket_document(bucket, DocumentKind.QUOTA, encode(quota), 1)
        assert metadata.meter_bucket(bucket, 1)
        bench.put(system, "x", bytes(1000), bucket)
    metadata.settle_usage("a", 1, Sums(), 1)
    metadata.settle_usage("b", 1, Sums(), 1)
    for account, stored in (("ann", encode(Quota(hard_objects=2))), ("bob", b"damaged")):
        metadata.add_access_key(AccessKey(account_record(account), account, stored, KeyState.DISABLED, 1))
    metadata.add_access_key(AccessKey("zoe", "ann", b"secret", KeyState.ACTIVE, 1))
    found = api("/v1/usage/buckets")
    assert [(one["name"], one["bytes"], one["objects"], one["share"]) for one in found["usage"]] == [
        ("a", 1000, 1, None),
        ("b", 1000, 1, 0.25),
        ("c", None, None, None),
    ]
    assert found["usage"][0]["quota"] is None
    assert found["usage"][1]["quota"]["hard_bytes"] == 4000
    assert found["next_after"] is None
    assert api("/v1/usage/bucket", bucket="b") == found["usage"][1]
    first = api("/v1/usage/buckets", limit=2)
    assert [one["name"] for one in first["usage"]] == ["a", "b"]
    assert [one["name"] for one in api("/v1/usage/buckets", after=first["next_after"])["usage"]] == ["c"]
    accounts = api("/v1/usage/accounts")["usage"]
    assert [(one["name"], one["objects"], one["share"]) for one in accounts] == [("ann", 3, 1.5), ("bob", 0, None)]
    assert "--start" in api.refused("/v1/usage/bucket", 404, bucket="none").detail


# --- the contract --------------------------------------------------------------------------------------------------
def test_examples_match_the_models() -> None:
    checked = 0
    for name in dir(models):
        model = getattr(models, name)
        extra = getattr(model, "model_config", {}).get("json_schema_extra", {})
        for example in extra.get("examples", []):
            assert json.loads(model.model_validate(example).model_dump_json(exclude_unset=True)) == example, name
            checked += 1
    assert checked >= 9
    for explanation, example in (
        (ObjectExplanation, explain_examples.OBJECT),
        (BlockExplanation, explain_examples.BLOCK),
    ):
        read = TypeAdapter(explanation)
        assert json.loads(read.dump_json(read.validate_python(example))) == example


def test_every_answer_has_an_example(system: System) -> None:
    document = app_of(system, Token(TOKEN)).openapi()
    for path, methods in document["paths"].items():
        content = methods["get"]["responses"]["200"]["content"]
        if "application/json" in content:
            name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert document["components"]["schemas"][name]["examples"], path
        errors = [one for status, one in methods["get"]["responses"].items() if int(status) >= 400 and status != "503"]
        for one in errors:
            (problem,) = one["content"].values()
            assert problem["schema"]["$ref"].rpartition("/")[2] in document["components"]["schemas"], path


def test_the_description_is_whole_after_routes_were_added(api: Api, system: System) -> None:
    app = app_of(system, None)
    app.add_api_route("/later", lambda: None)
    document = app.openapi()
    assert "/later" in document["paths"]
    for schemas in (document["components"]["schemas"], api("/openapi.json")["components"]["schemas"]):
        assert "Problem" in schemas
        assert "HTTPValidationError" not in schemas


def test_every_answer_tells_browsers_to_run_nothing_and_to_keep_nothing(api: Api) -> None:
    for path in ("/docs/", "/v1/status", "/v1/object", "/nowhere", "/docs/nothing", "/metrics"):
        headers = api.client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; "), path
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")


def test_answers_match_the_schema(bench: Bench, system: System) -> None:
    """Random requests, right and wrong ones, to every route; the store is the same afterwards. What a key may be is
    finer than a schema can say, so a request that the schema allows may be refused with 400."""
    fill(bench, system)
    end_log(system)
    before = dump(bench)
    app = app_of(system, Token(TOKEN))
    asked: Counter[tuple[str, GenerationMode]] = Counter()
    with Server(app, "127.0.0.1", 0) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        for found in schema.get_all_operations():
            assert isinstance(found, Ok)
            operation = found.ok()
            for mode in GenerationMode:
                ask_at_random(operation, mode, asked)
    assert {path for path, _ in asked} == set(routes(app))
    assert {mode for path, mode in asked if path == "/v1/blocks"} == set(GenerationMode)
    assert dump(bench) == before
    bench.assert_readable(system)


def ask_at_random(operation: Operation, mode: GenerationMode, asked: Counter[tuple[str, GenerationMode]]) -> None:
    @settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case[Any]) -> None:
        response = case.call(headers=AUTHORISED)
        sent = parse_qs(urlsplit(str(response.request.url)).query, keep_blank_values=True)
        assume(sent.keys() >= (case.query or {}).keys())  # [], [None] and the like are not sent: it may be right then
        asked[operation.path, mode] += 1
        # A list is sent as one value after the other, of which the last counts: that one may be right.
        sends_list = any(isinstance(value, list) for value in (case.query or {}).values())
        excluded: list[Any] = [positive_data_acceptance, *([negative_data_rejection] if sends_list else [])]
        case.validate_response(response, headers=AUTHORISED, excluded_checks=excluded)

    with suppress(Unsatisfiable):  # a route without parameters cannot be asked in a wrong way
        ask()


# --- the daemon ----------------------------------------------------------------------------------------------------
def test_the_command_serves_until_it_is_stopped(bench: Bench, system: System, tmp_path: Path) -> None:
    fill(bench, system)
    port = free_port()
    look_for_lost_shards(system)
    with NotifySocket(str(tmp_path / "notify")) as systemd:
        process = subprocess.Popen(
            [sys.executable, "-m", "nos_ec", "--config", str(bench.config), "api"],
            env={
                **without_settings(os.environ),
                "NOS_EC_API__PORT": str(port),
                "NOS_EC_API__TOKEN": TOKEN,
                **systemd.environment,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            assert systemd.heard() == "READY=1"
            url = f"http://127.0.0.1:{port}"
            until(lambda: is_ready(url), "the API is ready")
            with httpx.Client(base_url=url, headers=AUTHORISED, timeout=WAIT_S_MAX) as client:
                assert client.get("/v1/status").json()["stripes"] == system.metadata.totals().stripes
                families = text_string_to_metric_families(client.get("/metrics").text)
                names = {sample.name for family in families for sample in family.samples}
                assert {name for name in names if name.startswith("nos_ec_")} == expected_names("api"), UNEQUAL
                assert httpx.get(f"{url}/v1/status").status_code == 401
                process.send_signal(signal.SIGTERM)
                _, log = process.communicate(timeout=WAIT_S_MAX)
            assert process.returncode == 0, log.decode()
            assert TOKEN not in log.decode()
            assert systemd.heard() == "STOPPING=1"
        finally:
            process.kill()
            process.communicate()


def test_every_line_is_json_if_that_is_asked_for(bench: Bench, system: System) -> None:
    """The HTTP server, which has a logger of its own, writes JSON, too, and so does an error that ends the process."""
    port = free_port()
    environment = {**without_settings(os.environ), "NOS_EC_LOGGING__FORMAT": "json", "NOS_EC_API__PORT": str(port)}
    command = [sys.executable, "-m", "nos_ec", "--config", str(bench.config), "api"]
    refused = subprocess.run(command, env=environment, capture_output=True, timeout=WAIT_S_MAX, check=False)
    assert refused.returncode == json.loads(refused.stderr.splitlines()[-1])["exit_code"] == 3
    process = subprocess.Popen(
        command, env=environment | {"NOS_EC_API__TOKEN": TOKEN}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        until(lambda: is_ready(f"http://127.0.0.1:{port}"), "the API is ready")
        with socket.create_connection(("127.0.0.1", port), WAIT_S_MAX) as client:
            client.sendall(b"no HTTP at all\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 400")
        process.send_signal(signal.SIGTERM)
        said, log = process.communicate(timeout=WAIT_S_MAX)
    finally:
        process.kill()
        process.communicate()
    lines = [json.loads(line) for line in (said + log).splitlines()]
    assert process.returncode == 0
    (warning,) = [line for line in lines if line.get("logger") == "uvicorn.error"]
    assert (warning["level"], warning["event"]) == ("warning", "Invalid HTTP request received.")


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=WAIT_S_MAX).status_code == 200
    except httpx.TransportError:
        return False


def test_the_command_does_not_start_without_a_token(bench: Bench) -> None:
    found = bench.run("api", "--json")
    assert found.returncode == 3
    assert "NOS_EC_API__TOKEN" in json.loads(found.stderr.splitlines()[-1])["message"]


def test_a_busy_api_reports_it_and_stays_healthy(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Semaphore(0), threading.Event()
    list_blocks = system.metadata.list_blocks

    def slow(*of: Any) -> list[BlockRow]:
        entered.release()
        leave.wait(WAIT_S_MAX)
        return list_blocks(*of)

    monkeypatch.setattr(system.metadata, "list_blocks", slow)
    with serve(app_of(system, None, requests_max=2)) as client, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(client.get, path) for path in ("/v1/blocks", "/v1/blocks")]
        assert all(entered.acquire(timeout=WAIT_S_MAX) for _ in asked)
        problem = Api(client).refused("/v1/status", 503)
        assert (problem.type, problem.detail) == (
            "urn:nos-ec:problem:transient",
            "2 requests are already running; try again",
        )
        assert client.get("/livez").status_code == client.get("/metrics").status_code == 200
        leave.set()
        assert [one.result().status_code for one in asked] == [200, 200]
        Api(client)("/v1/status")


def test_idle_connections_do_not_count_as_requests(api: Api) -> None:
    url = api.client.base_url
    with ExitStack() as stack:
        for _ in range(2 * REQUESTS_MAX):
            stack.enter_context(socket.create_connection((url.host, url.port or 0), timeout=WAIT_S_MAX))
        time.sleep(0.2)
        assert api.client.get("/livez").status_code == 200
        api("/v1/status")


def test_a_request_in_flight_is_answered_before_the_process_ends(system: System) -> None:
    app, entered = FastAPI(), threading.Event()

    @app.get("/slow")
    def slow() -> str:
        entered.set()
        time.sleep(0.5)
        return "done"

    answers: list[int] = []
    with closing(httpx.Client()) as client:
        with Server(app, "127.0.0.1", 0) as server:
            asking = threading.Thread(target=lambda: answers.append(client.get(f"{server.url}/slow").status_code))
            asking.start()
            assert entered.wait(WAIT_S_MAX)
        asking.join(timeout=WAIT_S_MAX)  # before the client closes its connection
    assert answers == [200]


def test_a_taken_port_is_named() -> None:
    with Server(FastAPI(), "127.0.0.1", 0) as first:
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*api\.port"):
            Server(FastAPI(), "127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"api\.host"):
        Server(FastAPI(), "no.such.host.invalid", 0)


def test_readiness_follows_the_store(bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_now_ms: int) -> None:
        raise Transient("metadata: db:3306 does not answer")

    monkeypatch.setattr(system.metadata, "expired_leases", away)
    with serve(app_of(system, Token(TOKEN))) as client:
        reply = client.get("/readyz")
        assert (reply.status_code, reply.json()) == (503, {"ok": False, "problems": {"metadata": HIDDEN}})
        assert client.get("/livez").status_code == 200


def test_lost_shards_show_in_the_status_and_not_as_an_error(api: Api, bench: Bench, system: System) -> None:
    fill(bench, system)
    shard = bench.folder / "store" / "blocks" / "shard-02"
    shutil.move(shard, shard.with_name("gone"))
    status = api("/v1/status")
    assert status["free_bytes"] is None
    assert status["stripes"] > 0
    api("/readyz")
    key = next(iter(bench.acknowledged))
    assert api("/v1/object", bucket=key.bucket, name=key.name)["bucket"] == ObjectKey(key.bucket, key.name).bucket
