"""Six questions of an operator, on a store that has troubles: each is answered by the pages alone, in a few clicks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from nos_consumer.assemble import consumer_service
from nos_ec import __version__
from nos_ec.composition.wiring import System
from nos_ec.core.expiry import DAY_MS
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.figures.daemons import Presence
from tests.rig.browser import Visit, visiting
from tests.rig.fakes.clock import SetClock
from tests.rig.preloaded import Preloaded
from tests.service.check.test_scrub import shard_of
from tests.service.conftest import CHUNK, CONFIG, Bench, copy_files
from tests.service.console.test_console import browser, serving

__all__ = ["browser"]

PROBLEMS = 13
"""The exit code of a scrub that left damage."""
LATER_MS = 40 * 60_000
"""Longer than an object should wait, and shorter than the session of a consumer lasts."""
SETTINGS = """
[consumer]
window_objects = 50
split_bytes = 0
linger_ms = 60000
linger_max_ms = 60000
[trash]
keep_days = 7
"""


@dataclass(frozen=True)
class Troubled:
    """Two consoles of a store: `url`, and `later_url` with a clock that is 60 days ahead. The block of the object
    `lost` lacks more shards than can be made up for, and that of `kept` lacks none. `consumer` holds partitions and
    does nothing."""

    url: str
    later_url: str
    kept: ObjectKey
    lost: ObjectKey
    consumer: str


@pytest.fixture(scope="module")
def store(
    new_store: Path, tmp_path_factory: pytest.TempPathFactory, preloaded: Preloaded, browser: Browser
) -> Iterator[Troubled]:
    folder = tmp_path_factory.mktemp("troubled")
    copy_files(new_store, folder)
    config = CONFIG.replace('policy = "threshold"', 'policy = "space-target"').replace("_ms = 30000", "_ms = 3600000")
    consumer = "[consumer]\nwindow_objects = 50\nsplit_bytes = 0\n"
    assert consumer in config
    bench = Bench(folder, config.replace(consumer, SETTINGS), preloaded)
    with ExitStack() as stack:
        system = stack.enter_context(bench.open())
        kept, lost = make_trouble(bench, system)
        for number in range(3):
            bench.put(system, f"waits {number}", b"w", "late")
        bench.produce(system)
        idle = stack.enter_context(consumer_service(system))
        while idle.turn(flush=False):
            pass
        with_holders = system.worker.group_progress("test")
        (name,) = set(with_holders.holders().values())
        with_holders.close()
        Presence(system.metadata, system.clock, "consumer", name, __version__, lambda: []).record(ended=False)
        later = stack.enter_context(bench.open())
        later.clock = SetClock(system.clock.now_ms() + 60 * DAY_MS)
        system.clock = SetClock(system.clock.now_ms() + LATER_MS)
        yield Troubled(stack.enter_context(serving(system)), stack.enter_context(serving(later)), kept, lost, name)


def make_trouble(bench: Bench, system: System) -> tuple[ObjectKey, ObjectKey]:
    """Pack objects, delete half of them, some into the trash, and take shards away from a block, which a scrub finds.
    Returns an object of another block, and one of that block."""
    keys = [bench.put(system, f"{number:03}", bench.data(CHUNK), "photos") for number in range(150)]
    bench.put(system, "letter", b"l", "mail")
    bench.pack(system)
    for number, key in enumerate(keys):
        if number % 2:
            system.client.store().delete(key, permanently=number % 10 != 1)
    places = {key: system.metadata.get(key).extent for key in keys[::2]}
    blocks = {key: extent.block_id for key, extent in places.items() if extent is not None}
    kept = keys[0]
    lost = next(key for key, block_id in blocks.items() if block_id != blocks[kept])
    for shard in range(system.geometry.m + 1):
        shard_of(bench, system.metadata.block(blocks[lost]), shard).unlink()
    assert bench.run("scrub", "--rate", "0").returncode == PROBLEMS
    return kept, lost


@pytest.fixture
def visit(browser: Browser, store: Troubled) -> Iterator[Visit]:
    with visiting(browser, store.url) as visit:
        visit.go("/")
        yield visit
        assert visit.severe_findings() == []
        assert visit.page.locator("main .failed[role=status]").count() == 0, "no panel has failed"


def click(visit: Visit, name: str) -> None:
    """Follow a link of the bar at the top, or of the page."""
    visit.page.get_by_role("link", name=name, exact=True).first.click()


def panel(visit: Visit, heading: str) -> str:
    """The text of a panel."""
    heading_of = visit.page.get_by_role("heading", name=heading, exact=True)
    return visit.page.locator("section.panel", has=heading_of).inner_text()


def test_why_is_a_bucket_not_packed(visit: Visit) -> None:
    click(visit, "Flow")
    click(visit, "late")
    text = panel(visit, "What waits to be packed")
    assert "3 objects wait, with 3 B." in text
    assert "The one that has waited longest: waits 0" in text
    assert re.search(r"consumer", text), "why"
    assert "Next:" in text
    click(visit, "waits 0")
    expect(visit.page.locator("main")).to_contain_text("It is a landing copy, which was read for this page.")


def test_a_bucket_that_is_packed_says_so(visit: Visit) -> None:
    click(visit, "Buckets")
    click(visit, "mail")
    assert "Nothing of it waits: all its objects are in blocks, or empty." in panel(visit, "What waits to be packed")


def test_what_holds_the_space(visit: Visit) -> None:
    text = panel(visit, "What a byte costs")
    assert "Dead" in text
    assert re.search(r"In the trash[^\n]*\n(?:[^\n]*\n)?240\.0 KiB", text), text
    visit.page.locator("main").get_by_role("link", name="Buckets", exact=True).click()
    rows = visit.page.locator("section.panel", has_text="The largest buckets").locator("tbody tr")
    expect(rows.first).to_contain_text("photos")


def test_which_consumer_is_stuck(visit: Visit, store: Troubled) -> None:
    click(visit, "Flow")
    text = panel(visit, "Partitions of the message log")
    assert f"Consumer {store.consumer} is stuck or has too much to do: it holds partition" in text
    assert "a message has waited for 40" in text
    assert "No consumer holds" not in text
    click(visit, "Last night")
    assert re.search(rf"{store.consumer}.*silent since", panel(visit, "Who is alive"))


def test_what_a_target_would_cost(browser: Browser, store: Troubled) -> None:
    with visiting(browser, store.later_url) as visit:
        visit.go("/")
        click(visit, "Space and GC")
        row = visit.page.get_by_role("row").filter(has=visit.page.get_by_role("rowheader", name="1.300"))
        expect(row).to_contain_text(re.compile(r"[KM]iB.*[KM]iB.*(yes|no, only)"))
        expect(visit.page.locator("main")).to_contain_text("or more is met already, and costs nothing now")
        expect(visit.page.locator("#slider .now")).to_contain_text("GC would copy")
        assert visit.severe_findings() == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_is_an_object_safe(visit: Visit, store: Troubled, is_lost: bool) -> None:
    key = store.lost if is_lost else store.kept
    click(visit, "Objects")
    click(visit, key.bucket)
    click(visit, key.name)
    main = visit.page.locator("main")
    expect(main).to_contain_text("Its block is on 11 shards, of which any 3 may be lost.")
    said = "4 shards are missing now (0, 1, 2, 3): bytes on them cannot be read." if is_lost else "None is missing now."
    expect(main).to_contain_text(said)
    expect(main).to_contain_text(re.compile(r"read all blocks of the store; it left \d+ damages? unmended"))


def test_what_happened_last_night(visit: Visit) -> None:
    click(visit, "Last night")
    row = visit.page.get_by_role("row").filter(has=visit.page.get_by_role("rowheader", name="Scrub", exact=True))
    expect(row).to_contain_text("problems")
    assert re.search(r"The last scrub left \d+ damages? unmended", panel(visit, "Can it be restored?"))
    assert "There is no dump in the store." in panel(visit, "Can it be restored?")
