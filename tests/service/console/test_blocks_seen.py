"""The pages of blocks in a real browser: grid, tiles and one block, by mouse and by keys, with few blocks and many."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from sqlalchemy import text

from nos_ec.composition.wiring import System
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockState
from nos_ec.engine.texts import size_text
from nos_gc.assemble import gc_collector
from tests.rig.browser import ICONS, Visit, visiting
from tests.service.conftest import CHUNK, STRIPE, Bench
from tests.service.console.test_console import Away, browser, serving
from tests.service.gc.test_gc_costs import MADE_UP

__all__ = ["browser"]

MANY_BLOCKS = 300_000
TILES = re.compile(r"/blocks/tiles\.bin")


def make_up(system: System, count: int) -> None:
    """Replace the rows of blocks by many others."""
    with system.metadata._transactions.engines[0].begin() as connection:  # type: ignore[attr-defined]
        connection.execute(text("DELETE FROM blocks"))
        connection.execute(MADE_UP, {"count": count, "size": 8 * STRIPE, "now_ms": system.clock.now_ms()})


def wait_for_tiles(page: Page, drawn: str = "") -> None:
    """Wait until tiles are drawn, if need be with this colour and order."""
    page.locator(f"canvas[data-drawn='{drawn}']" if drawn else "canvas[data-drawn]").wait_for()


REQUESTS_MAX = 4
"""Of a page: itself, its style, its script, and its data."""


def of_page(visit: Visit) -> list[str]:
    """Return the URLs that the page has requested, without its icons."""
    return [one for one in visit.requested if not one.endswith(ICONS)]


@pytest.mark.parametrize(
    "look",
    [{"color_scheme": "light"}, {"color_scheme": "dark", "viewport": {"width": 360, "height": 640}}],
    ids=["light", "dark and narrow"],
)
def test_from_the_grid_to_a_dead_range(browser: Browser, bench: Bench, system: System, look: dict[str, Any]) -> None:
    for name in ("kept", "overwritten", "deleted"):
        bench.put(system, name, bench.data(CHUNK))
    bench.pack(system)
    bench.put(system, "overwritten", b"new")
    bench.delete(system, ObjectKey("b", "deleted"))
    with serving(system) as url, visiting(browser, url, **look) as visit:

        def is_fine() -> None:
            assert visit.severe_findings() == [], visit.page.url
            assert visit.page.locator(".failed").count() == 0
            assert visit.page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, visit.page.url

        visit.go("/blocks")
        is_fine()
        assert visit.page.locator("svg.map a").count() == 1
        visit.page.locator("svg.map a").click()
        wait_for_tiles(visit.page)
        is_fine()
        expect(visit.page.locator("#tiles-now")).to_have_text("1 block.")
        visit.page.locator("canvas").hover(position={"x": 3, "y": 3})
        expect(visit.page.locator("#tiles-now")).to_contain_text("fresh, sealed; 66.4 % holes")
        visit.page.locator("canvas").click(position={"x": 3, "y": 3})
        expect(visit.page.locator("h1")).to_contain_text("Block 0")
        is_fine()
        kinds = [one.get_attribute("class") or "" for one in visit.page.locator("svg.map a rect").all()]
        assert sorted(set(kinds)) == ["dead", "header", "live", "names"]
        for link, shown in (
            ("b/kept, 16.0 KiB", "It is packed, in block"),
            ("dead range, 16.0 KiB", "between"),
        ):
            visit.page.get_by_role("link", name=link, exact=True).first.click()
            expect(visit.page.locator("#place")).to_contain_text(shown)
            is_fine()
        text_of_dead = {self_text(visit.page, number) for number in range(kinds.count("dead"))}
        assert any("b/overwritten" in one and "it was overwritten" in one for one in text_of_dead)
        assert any("b/deleted" in one and "it was deleted" in one for one in text_of_dead)


def self_text(page: Page, number: int) -> str:
    """Choose a dead range, and return what the page says about it."""
    page.locator("svg.map a", has=page.locator("rect.dead")).nth(number).click()
    return page.locator("#place").inner_text()


def test_keys_move_in_the_grid_and_between_tiles(browser: Browser, system: System) -> None:
    make_up(system, 3000)
    with serving(system) as url, visiting(browser, url) as visit:
        visit.go("/blocks")
        page = visit.page
        assert page.locator("svg.map a[tabindex='0']").count() == 1, "the grid is one stop of the Tab key"
        first = page.locator("svg.map a[tabindex='0']").get_attribute("href")
        page.locator("svg.map a[tabindex='0']").focus()
        for key in ("ArrowRight", "ArrowUp"):
            page.keyboard.press(key)
        now = page.locator("svg.map a:focus").get_attribute("href")
        assert now != first
        assert page.locator("svg.map a[tabindex='0']").get_attribute("href") == now
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{url}{now}")
        wait_for_tiles(page)
        visit.go("/blocks/tiles?order=price&colour=age")
        wait_for_tiles(page, "age price")
        page.locator("canvas").focus()
        seen = []
        for key in ("Home", "ArrowRight", "ArrowDown", "End", "ArrowLeft"):
            page.keyboard.press(key)
            seen.append(page.locator("#tiles-now").inner_text())
        assert len(set(seen)) == 5
        assert all(
            re.fullmatch(r"Block [\d,]+ in the store; fresh, sealed; .* holes; about .* old.*", one) for one in seen
        )
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"/blocks/[0-9a-f]{32}$"))


def test_a_page_of_many_blocks_is_there_before_its_tiles(browser: Browser, system: System) -> None:
    make_up(system, MANY_BLOCKS)
    held: list[Route] = []
    sizes: list[int] = []
    with serving(system) as url, visiting(browser, url) as visit:
        page = visit.page
        visit.go("/blocks")
        while page.locator("svg.map").count() == 0:  # the first picture takes longer than a page waits
            visit.go("/blocks")
        expect(page.locator("main")).to_contain_text("300,000 blocks")
        assert visit.severe_findings() == []
        assert page.locator("svg.map a").count() <= 64 * 32
        page.route(TILES, lambda route: held.append(route))
        page.on("response", lambda answer: sizes.append(len(answer.body())) if TILES.search(answer.url) else None)
        visit.requested.clear()
        visit.go("/blocks/tiles?order=price")
        expect(page.get_by_role("button", name="Show")).to_be_enabled()
        expect(page.locator("#tiles-now")).to_contain_text("are being loaded")
        page.get_by_label("Colour").select_option("kind")
        page.get_by_label("Colour").select_option("holes")
        expect(page.locator("canvas[data-drawn]")).to_have_count(0)
        for route in held:
            route.continue_()
        page.unroute(TILES)
        wait_for_tiles(page, "holes price")
        expect(page.locator("#tiles-now")).to_have_text("300,000 blocks.")
        assert len(of_page(visit)) <= REQUESTS_MAX, visit.requested
        asked = [one for one in visit.requested if TILES.search(one)]
        page.get_by_label("Order").select_option("place")
        wait_for_tiles(page, "holes place")
        page.get_by_label("Colour").select_option("age")
        wait_for_tiles(page, "age place")
        expect(page).to_have_url(re.compile(r"order=place&colour=age$"))
        assert [one for one in visit.requested if TILES.search(one)] == asked, (
            "another order or colour is drawn from the same answer"
        )
        assert all(size <= 10 * MANY_BLOCKS for size in sizes)
        visit.go("/blocks/tiles?ages=40-63&holes=0-31&order=price")
        wait_for_tiles(page)
        expect(page.locator("#tiles-now")).to_contain_text("4,000 of ")


def test_the_slider_computes_what_gc_would(browser: Browser, bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text().replace('policy = "threshold"', 'policy = "space-target"'))
    with bench.open() as system:
        make_up(system, 3000)
        curve = gc_collector(system).price_curve()
        with serving(system) as url, visiting(browser, url) as visit:
            visit.go("/space")
            assert visit.severe_findings() == []
            slider = visit.page.locator("#slider input")
            expect(slider).to_be_visible()
            assert len(of_page(visit)) <= REQUESTS_MAX, visit.requested
            for target in (1.9, 1.4, 1.1):
                slider.evaluate("(it, to) => { it.value = to; it.dispatchEvent(new Event('input')); }", target)
                cost = curve.cost(target)
                expect(visit.page.locator("#slider .now")).to_contain_text(
                    f"copy {size_text(cost.copied_bytes)} and free {size_text(cost.freed_bytes)};"
                )
            expect(visit.page.locator("svg.curve .target")).to_have_count(1)
            visit.page.get_by_role("button", name="Make a plan").click()
            expect(visit.page.get_by_role("heading", name="Plan", exact=True)).to_be_visible()


def test_pages_stay_while_the_database_or_the_blocks_are_away(browser: Browser, bench: Bench, system: System) -> None:
    bench.put(system, "a", bench.data(CHUNK))
    bench.pack(system)
    (block_id,) = [one.block_id for one in system.metadata.list_blocks(None, 9) if one.state is BlockState.SEALED]
    metadata, blocks = system.metadata, system.blocks
    with serving(system) as url, visiting(browser, url) as visit:
        system.blocks = Away(system.geometry)
        assert "The headers cannot be read" in visit.go(f"/blocks/{block_id.hex()}")
        assert visit.page.locator("svg.map rect.live").count() == 1, "its row says where it is"
        assert "when it was packed" in visit.go("/objects/one?bucket=b&name=a")
        assert visit.severe_findings() == []
        system.blocks, system.metadata = blocks, Away(system.geometry)
        for path in (f"/blocks/{block_id.hex()}", "/objects", "/objects/one?bucket=b&name=a"):
            assert "the server does not answer" in visit.go(path)
            assert visit.severe_findings() == []
        system.metadata = metadata


def test_a_picture_that_is_over_and_a_block_that_is_gone(browser: Browser, system: System) -> None:
    with serving(system) as url, visiting(browser, url) as visit:
        assert "That picture of the store is over" in visit.go("/blocks/at?picture=7&block=0")
        assert "has no row" in visit.go(f"/blocks/{'0' * 32}")
        assert "There is no such page" in visit.go("/blocks/x")
        assert "is not a number" in visit.go("/blocks/at?picture=a&block=0")
        assert "give two numbers from 0 to 63" in visit.go("/blocks/tiles?ages=5-64")
        visit.were_refused(410, 404, 404, 400, 400)
