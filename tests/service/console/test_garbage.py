"""Odd values, methods and headers: every address answers them with a page that says what is wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import httpx
import pytest
from starlette.types import ASGIApp

from nos_ec.composition.wiring import System
from nos_ec.console.app import create_app
from nos_ec.console.objects import Show
from nos_ec.console.panels import Panels
from tests.service.conftest import WAIT_S_MAX, Bench

LONG = 30_000
ODD = (
    *(
        "",
        "%00",
        "%ff",
        "9" * 400,
        "x" * LONG,
        "9" * 18 + "-" + "9" * 18,
        quote("\u202e\x1b\u0661"),
        "0" * 32 + "/%22<b>",
    ),
)
"""Values as they are in an address."""
PARAMETERS = {
    "/objects": ("bucket", "prefix", "after"),
    "/objects?bucket=b": ("prefix", "after"),
    "/objects/one?bucket=b&name=b/1": ("version", "trash"),
    "/objects/one": ("bucket", "name"),
    "/buckets": ("after",),
    "/buckets/one": ("bucket",),
    "/blocks/tiles": ("ages", "holes", "order", "colour"),
    "/blocks/tiles.bin": ("ages", "order"),
    "/blocks/at": ("picture", "block"),
    "/blocks/{block}": ("at", "first"),
}
FIELDS = re.compile(r' value="[^"]*"')
"""A field of a form holds the text that it would send again."""


@pytest.fixture
def app(bench: Bench, system: System) -> Iterator[ASGIApp]:
    bench.put_some(system, 20)
    bench.pack(system)
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        yield create_app(system, panels, None, bytes)


def addresses(block: str) -> Iterator[str]:
    for path, names in PARAMETERS.items():
        for name in names:
            shows = [f"&show={show}" for show in Show] if path.startswith("/objects?") else [""]
            for show in [*shows, "&show=trash"] if path == "/objects" else shows:
                for value in ODD:
                    yield f"{path.format(block=block)}{'&' if '?' in path else '?'}{name}={value}{show}"


def test_odd_values_are_shown_as_text_or_refused(app: ASGIApp, system: System) -> None:
    block = system.metadata.list_blocks(None, 1)[0].block_id.hex()

    async def ask() -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for address in addresses(block):
                answer = await client.get(address)
                assert answer.status_code in (200, 400, 404), f"{answer.status_code}: {address[:200]}"
                assert not set("\u202e\x00\x1b") & set(FIELDS.sub("", answer.text)) or "tiles.bin" in address, address
                assert answer.status_code == 200 or len(answer.content) < LONG, f"repeats its value: {address[:200]}"

    asyncio.run(ask())


def test_other_methods_are_refused_with_those_that_there_are(app: ASGIApp) -> None:
    async def ask() -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path in ("/", "/objects", "/blocks/tiles.bin", "/simulator"):
                for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
                    assert (await client.request(method, path)).status_code == 403, "not from a page of the console"
                    answer = await client.request(method, path, headers={"Sec-Fetch-Site": "same-origin"})
                    assert answer.status_code == 405
                    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
                assert (await client.head(path)).content == b""

    asyncio.run(ask())
