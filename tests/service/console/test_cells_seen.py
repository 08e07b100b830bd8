"""The console of a store of three cells: all of them side by side, the pages of each, and cells that are away."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from nos_consumer.assemble import drain
from nos_ec import open_store
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.cells import open_home
from nos_ec.composition.wiring import System, open_system
from nos_ec.console import last_night, overview
from nos_ec.console.access.login_token import LoginTokens, find_login_tokens
from nos_ec.console.app import Server, cells_app
from nos_ec.console.cells import opening
from nos_ec.console.cells.moves import read_moves
from nos_ec.console.cells.opening import ConsoleCells
from nos_ec.console.panels import LATE, THREADS, Panels
from nos_ec.console.view import NAVIGATION
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.figures.events import EventKind, Outcome
from nos_ec.engine.gc.control import GcControl
from nos_ec.engine.upkeep.move_recovery import mover_lease
from nos_ec.ports.metadata import MoveRow, MoveState
from nos_ec.settings import Settings, load_settings
from nos_producer.assemble import producer_service
from tests.rig.browser import visiting
from tests.rig.waiting import until
from tests.service.conftest import WAIT_S_MAX
from tests.service.console.test_console import HOSTILE_NAMES, MANY_BLOCKS, Away, browser, multiply_blocks
from tests.service.s3.cell_stores import cells_config, new_cells

__all__ = ["browser"]

NAMES = ["a", "b", "c"]
PAGES = [path for path, _ in NAVIGATION]
NARROW: dict[str, Any] = {"viewport": {"width": 360, "height": 640}}
TOKEN = "the-token-of-the-operator-ann"


@dataclass
class Served:
    """A running console, and its cells."""

    url: str
    cells: ConsoleCells

    def wait_for(self, *names: str) -> None:
        """Wait until these cells are open."""
        until(lambda: set(names) <= self.cells.opened().keys())


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The cells `a`, which has the directory, `b`, and `c`, which gets no new buckets."""
    return new_cells(tmp_path, a=1, b=2, c=0)


@contextmanager
def serving(
    settings: Settings, *open_first: str, tokens: LoginTokens | None = None, wait_s: float = WAIT_S_MAX
) -> Iterator[Served]:
    """wait_s: how long the page of all cells waits for its panels."""
    clock = SystemClock()
    with (
        pytest.MonkeyPatch.context() as patch,
        closing(Panels(clock, wait_s)) as panels,
        cells_app(settings, clock, panels, tokens, os.urandom) as (app, cells),
        Server(app, "127.0.0.1", 0) as server,
    ):
        patch.setattr(opening, "Panels", partial(Panels, wait_s_max=WAIT_S_MAX))
        served = Served(server.url, cells)
        served.wait_for(*open_first)
        yield served


def database(settings: Settings, name: str) -> Path:
    root = settings.of_cell(name).store.root
    assert root is not None
    return root / "metadata.db"


def put_in(settings: Settings, cell: str, bucket: str, *names: str) -> None:
    """Store objects of a byte in a bucket of a cell."""
    with open_home(settings, bucket, creates=True, preferred=cell) as system:
        assert system.settings.cell == cell
    with open_store(settings) as store:
        for name in names:
            store.put(ObjectKey(bucket, name), b"x")


def row(page: Page, name: str) -> str:
    """The text of a line of the table of cells."""
    table = page.locator("section.panel", has_text="The cells of the store")
    return table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name, exact=True)).inner_text()


@pytest.mark.parametrize("look", [{"color_scheme": "dark"}, NARROW], ids=["dark", "narrow"])
def test_all_cells_are_side_by_side_while_one_is_away(browser: Browser, settings: Settings, look: Any) -> None:
    put_in(settings, "a", "photos", "1", "2")
    put_in(settings, "b", "mail", *HOSTILE_NAMES)
    away = database(settings, "c").rename(database(settings, "c").with_suffix(".gone"))
    with serving(settings, "a", "b") as served, visiting(browser, served.url, **look) as visit:
        until(lambda: "metadata" in served.cells.why_away("c"))
        visit.go("/")
        expect(visit.page).to_have_title("Cells - nos_ec")
        assert "2 objects, 2 B" in row(visit.page, "a")
        assert f"{len(HOSTILE_NAMES)} objects" in row(visit.page, "b")
        assert "Away:" in row(visit.page, "c")
        assert "metadata.db" in row(visit.page, "c"), "the reason"
        assert re.search(r"7 objects, 7 B\s.*\s3\s", row(visit.page, "2 of 3 cells"))
        assert visit.severe_findings() == []
        assert visit.page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
        for page in PAGES:
            visit.go(f"/cells/b{page}")
            assert visit.severe_findings() == [], page
            assert visit.page.locator(".failed[role=alert]").count() == 0, page
            assert visit.page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, page
        text = visit.go("/cells/c/flow")
        assert "Cell c is away" in text
        assert "tries again by itself" in text
        visit.were_refused(503)
        assert visit.severe_findings() == []
        away.rename(database(settings, "c"))
        served.wait_for("c")
        visit.page.reload()
        expect(visit.page.get_by_role("heading", level=1)).to_have_text("Flow")
        visit.go("/")
        assert "0 objects, 0 B" in row(visit.page, "c")
        assert "7 objects, 7 B" in row(visit.page, "All cells")


def test_the_choice_of_a_cell_keeps_the_page_and_links_stay_in_the_cell(browser: Browser, settings: Settings) -> None:
    put_in(settings, "a", "photos", "1")
    put_in(settings, "b", "mail", "1")
    with serving(settings, *NAMES) as served, visiting(browser, served.url) as visit:
        visit.go("/")
        visit.page.get_by_role("row").get_by_role("link", name="a", exact=True).click()
        expect(visit.page).to_have_title("Overview - cell a - nos_ec")
        visit.page.get_by_role("link", name="Objects", exact=True).click()
        visit.page.get_by_role("link", name="photos", exact=True).click()
        visit.page.get_by_role("link", name="1", exact=True).click()
        expect(visit.page).to_have_url(f"{served.url}/cells/a/objects/one?bucket=photos&name=1")
        expect(visit.page.locator(".elsewhere").first).to_contain_text("nos-ec --cell a explain")
        cells = visit.page.get_by_role("navigation", name="Cells")
        cells.get_by_role("link", name="b", exact=True).click()
        expect(visit.page).to_have_url(f"{served.url}/cells/b/objects")
        expect(visit.page.get_by_role("link", name="mail", exact=True)).to_be_visible()
        assert cells.locator("[aria-current]").all_inner_texts() == ["b"]
        pages = [*PAGES, "/objects?bucket=mail", "/objects/one?bucket=mail&name=1", "/buckets/one?bucket=mail", "/no"]
        for page in [*pages, "/blocks/tiles", f"/blocks/{'0' * 32}", "/space?plan=1", "/last-night?quarantine=1"]:
            visit.go(f"/cells/b{page}")
            places = visit.page.locator("main, nav[aria-label=Pages]").locator("[href], [action], [data-source]")
            found = places.evaluate_all("all => all.map(one => one.href || one.action || one.dataset.source)")
            assert len(found) >= len(PAGES)
            outside = {urlsplit(one).path for one in found if not urlsplit(one).path.startswith("/cells/b/")}
            assert outside <= {f"/cells/b{page}"}, page
        visit.were_refused(404, 404)


def test_a_bucket_is_found_in_its_cell(browser: Browser, settings: Settings) -> None:
    put_in(settings, "b", "mail", "letter")
    with serving(settings, *NAMES) as served, visiting(browser, served.url) as visit:
        visit.go("/")
        visit.page.get_by_label("Bucket", exact=True).fill("mail")
        visit.page.get_by_role("button", name="Open").click()
        expect(visit.page).to_have_url(f"{served.url}/cells/b/buckets/one?bucket=mail")
        expect(visit.page.locator("main")).to_contain_text("1 object waits")
        expect(visit.page.locator("main")).to_contain_text("Start nos-ec --cell b producer.")
        for name in ("nowhere", HOSTILE_NAMES[0]):
            visit.go("/")
            visit.page.get_by_label("Bucket", exact=True).fill(name)
            visit.page.get_by_role("button", name="Open").click()
            expect(visit.page.get_by_role("status")).to_have_text("No cell that is open has a bucket of this name.")
            expect(visit.page.get_by_label("Bucket", exact=True)).to_have_value(name)
        directory = served.cells.opened()["a"].system
        directory.metadata.claim_home("wide", "ann", "b", 5, ("b", "c", "c"))
        visit.go("/bucket?bucket=wide")
        expect(visit.page.get_by_role("status")).to_have_text(
            "This bucket is wide: its objects are divided among the cells b, c. Each shows its own share."
        )
        assert visit.page.locator("main h2").first.inner_text() == "In which cell is a bucket?", "the answer is first"
        expect(visit.page.locator("main").get_by_role("link", name="c", exact=True).first).to_have_attribute(
            "href", "/cells/c/buckets/one?bucket=wide"
        )
        directory.metadata = Away(directory.geometry)
        visit.go("/bucket?bucket=mail")
        expect(visit.page).to_have_url(f"{served.url}/cells/b/buckets/one?bucket=mail")
        visit.go("/bucket?bucket=elsewhere")
        expect(visit.page.get_by_role("status").last).to_have_text("the server does not answer")


def test_a_cell_that_goes_away_keeps_its_last_figures(
    browser: Browser, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (overview, last_night):
        monkeypatch.setattr(module, "FIGURES_MS", 0)
    put_in(settings, "a", "photos", "1", "2")
    with serving(settings, *NAMES) as served, visiting(browser, served.url) as visit:
        visit.go("/")
        assert "2 objects, 2 B" in row(visit.page, "a")
        cell = served.cells.opened()["a"]
        cell.system.metadata = Away(cell.system.geometry)
        until(lambda: "Some figures are old or missing: the server does not answer" in visit.go("/"))
        assert "2 objects, 2 B" in row(visit.page, "a")
        assert "old or missing" in row(visit.page, "a")
        assert "old or missing" not in row(visit.page, "b")
        assert visit.severe_findings() == []


def test_a_cell_that_hangs_while_it_is_opened_delays_no_other(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell of the directory may hang, too."""
    go_on = threading.Event()

    def open_or_hang(of_cell: Settings) -> System:
        if of_cell.cell == "a":
            go_on.wait(WAIT_S_MAX)
        return open_system(of_cell)

    monkeypatch.setattr(opening, "open_system", open_or_hang)
    with serving(settings, "b", "c") as served, httpx.Client(base_url=served.url, timeout=WAIT_S_MAX) as client:
        assert "It has not answered yet." in client.get("/").text
        assert client.get("/cells/a/flow").status_code == 503
        assert client.get("/cells/b/flow").status_code == 200
        go_on.set()
        served.wait_for("a")
        assert client.get("/cells/a/flow").status_code == 200


class Hanging:
    """A database that does not answer until the test ends."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def __getattr__(self, name: str) -> Any:
        def hang(*_: object, **__: object) -> None:
            self.ended.wait(WAIT_S_MAX)
            raise Transient("the test has ended")

        return hang


def test_a_cell_that_hangs_later_delays_no_other(settings: Settings) -> None:
    with (
        serving(settings, *NAMES, wait_s=10) as served,
        httpx.Client(base_url=served.url, timeout=WAIT_S_MAX) as client,
    ):
        opened, hanging = served.cells.opened(), Hanging()
        opened["b"].panels._wait_s_max = 0.1
        real, opened["b"].system.metadata = opened["b"].system.metadata, hanging
        try:
            text = client.get("/").text
            assert LATE in text
            assert "2 of 3 cells" in text
            for _ in range(2 * THREADS):
                assert LATE in client.get("/cells/b/objects/one?bucket=b&name=n").text
            for page in ("/", "/flow", "/objects?bucket=b", "/last-night"):
                assert LATE not in client.get(f"/cells/a{page}").text, page
        finally:
            hanging.ended.set()
            opened["b"].system.metadata = real


def test_the_page_of_all_cells_walks_through_no_blocks(
    browser: Browser, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(settings, "b", "mail", "1")
    with open_system(settings.of_cell("b")) as system, producer_service(system) as producer:
        producer.drain()
        drain(system)
    multiply_blocks(database(settings, "b"), MANY_BLOCKS)
    with open_system(settings.of_cell("b")) as system:
        system.operator.store_totals().keep()

    def fail(*_: object) -> None:
        raise AssertionError("this walks through all blocks")

    with serving(settings, *NAMES) as served, visiting(browser, served.url) as visit:
        for name in ("totals", "list_blocks", "blocks_with_holes", "space_use"):
            monkeypatch.setattr(served.cells.opened()["b"].system.metadata, name, fail)
        text = visit.go("/")
        assert visit.page.locator("[role=status]").count() == 0, text
        assert "293.0 KiB" in row(visit.page, "b"), "a byte in each block"
        assert len(visit.requested) <= 4, visit.requested
        costs = visit.page.locator("section.panel", has_text="What a byte costs")
        assert costs.get_by_role("rowheader").all_inner_texts() == ["b"], "the others have no live bytes"
        assert "Coding 0.375" in (costs.get_by_role("img").get_attribute("aria-label") or "")
        assert visit.severe_findings() == []


def test_what_went_wrong_in_a_cell_leads_to_its_last_night(browser: Browser, settings: Settings) -> None:
    with open_system(settings.of_cell("b")) as system:
        system.events().record(EventKind.SCRUB, Outcome.PROBLEMS, HOSTILE_NAMES[0])
        system.events().record(EventKind.DUMP, Outcome.DONE, "a good dump")
    with serving(settings, *NAMES) as served, visiting(browser, served.url) as visit:
        text = visit.go("/")
        assert HOSTILE_NAMES[0] in text
        assert "a good dump" not in text
        assert visit.severe_findings() == []
        visit.page.get_by_role("link", name="b: last night of the cell").click()
        expect(visit.page).to_have_url(f"{served.url}/cells/b/last-night")
        expect(visit.page.locator("main")).to_contain_text("a good dump")


def test_a_cell_of_another_name_is_not_shown(settings: Settings) -> None:
    """Its database is that of cell `b`, so that a form would change the wrong cell."""
    wrong = settings.of_cell("b").model_copy()
    wrong._cell = "c"
    cells = dict(settings.cells)
    cells["c"] = type(cells["c"])(wrong, 0)
    with serving(settings.with_cells(cells), "a", "b") as served:
        until(lambda: "its database is that of cell b" in served.cells.why_away("c"))
        assert httpx.get(f"{served.url}/cells/c/", timeout=WAIT_S_MAX).status_code == 503


@pytest.mark.parametrize("path", ["/cells/d/", "/cells/%3Cscript%3Ealert(1)%3C%2Fscript%3E/", "/cells//", "/blocks"])
def test_other_cells_and_pages_do_not_exist(settings: Settings, path: str) -> None:
    with serving(settings) as served:
        found = httpx.get(f"{served.url}{path}", timeout=WAIT_S_MAX)
        assert found.status_code == 404
        assert "<script>alert" not in found.text
        assert "There is no such page." in found.text


def test_no_page_of_a_cell_is_seen_without_a_login(browser: Browser, settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with (
        serving(settings, *NAMES, tokens=LoginTokens(file)) as served,
        visiting(browser, served.url) as visit,
    ):
        for path in ("/", "/bucket?bucket=x", "/cells/a/", "/cells/a/objects", "/cells/d/"):
            assert httpx.get(f"{served.url}{path}", timeout=WAIT_S_MAX).status_code == 401, path
        visit.go("/cells/b/objects?bucket=mail")
        visit.log_in(TOKEN)
        expect(visit.page).to_have_url(f"{served.url}/cells/b/objects?bucket=mail")
        assert httpx.get(f"{served.url}/", headers={"Host": "evil.example"}, timeout=WAIT_S_MAX).status_code == 421


# --- changes -------------------------------------------------------------------------------------------------------
def changing(folder: Path, more: str = "") -> Settings:
    """The settings of the store in a folder, with changes by the operator ann."""
    operators = folder / "operators"
    operators.write_text(f"ann:{TOKEN}\n")
    operators.chmod(0o600)
    config = cells_config(folder, a=1, b=2, c=0)
    console = f'[console]\nchanges = true\noperators_file = "{operators}"\n'
    config.write_text(console + config.read_text() + more)
    return load_settings(config, {})


def test_a_change_is_made_in_the_cell_of_its_page(browser: Browser, settings: Settings, tmp_path: Path) -> None:
    allowed = changing(tmp_path, "console.changes = false\n")  # of cell c, the last one
    tokens = find_login_tokens(allowed, "127.0.0.1", anonymous=False)
    with (
        serving(allowed, *NAMES, tokens=tokens) as served,
        visiting(browser, served.url) as visit,
    ):
        visit.go("/cells/b/space")
        visit.log_in(TOKEN)
        visit.page.get_by_role("button", name="Pause GC").click()
        expect(visit.page).to_have_url(f"{served.url}/cells/b/space")
        expect(visit.page.locator("main")).to_contain_text("it is paused until nos-ec --cell b gc resume")
        visit.go("/cells/c/space")
        assert visit.page.get_by_role("button", name="Pause GC").count() == 0
        opened = served.cells.opened()
        paused = {name: GcControl(cell.system.metadata).read().paused for name, cell in opened.items()}
        assert paused == {"a": False, "b": True, "c": False}
        csrf = visit.page.locator("input[name=csrf]").first.input_value()
        form: dict[str, str | float | bool] = {
            "csrf": csrf,
            "action": "pause",
            "seen": GcControl(opened["c"].system.metadata).read().text,
        }
        answer = visit.context.request.post(
            f"{served.url}/cells/c/space/control", form=form, headers={"Sec-Fetch-Site": "same-origin"}
        )
        assert answer.status == 404


def test_changes_need_an_audit_trail_in_each_cell(settings: Settings, tmp_path: Path) -> None:
    without = changing(tmp_path, "audit.size_bytes_max = 0\n")
    with pytest.raises(ConfigError, match="audit trail"):
        find_login_tokens(without, "127.0.0.1", anonymous=False)
    find_login_tokens(changing(tmp_path), "127.0.0.1", anonymous=False)


# --- moves ---------------------------------------------------------------------------------------------------------
def set_move(settings: Settings, cell: str, state: MoveState, other: str, bucket: str = "mail") -> None:
    with open_system(settings.of_cell(cell)) as system:
        row = MoveRow(bucket, state, other, 1, 7, system.clock.now_ms())
        system.metadata.set_move(row, system.metadata.move_row(bucket))


def test_a_move_is_shown_with_what_to_do(browser: Browser, settings: Settings) -> None:
    put_in(settings, "b", "mail", "letter")
    put_in(settings, "a", "photos", "1")
    set_move(settings, "a", MoveState.ARRIVING, "b")
    set_move(settings, "b", MoveState.LEAVING, "a")
    set_move(settings, "a", MoveState.HERE, "c", "photos")
    with serving(settings, *NAMES) as served, visiting(browser, served.url) as visit:
        visit.go("/")
        moves = visit.page.locator("section.panel", has_text="Buckets that are being moved")
        assert moves.locator("tbody tr").count() == 1, "both rows of a move are one line, and photos has arrived"
        expect(moves.locator("tbody tr")).to_have_text(re.compile(r"mail\s*b\s*a\s*being copied.*stands still", re.S))
        expect(moves).to_contain_text("nos-ec cells move BUCKET --to TO continues it")
        expect(moves).not_to_contain_text("photos")
        moves.get_by_role("link", name="a", exact=True).click()
        expect(visit.page).to_have_url(f"{served.url}/cells/a/buckets/one?bucket=mail")
        main = visit.page.locator("main")
        expect(main).to_contain_text("This bucket is being moved to this cell from cell b")
        assert visit.page.locator(".failed").count() == 0, "no panel fails because the cell does not serve it"
        assert visit.severe_findings() == []
        visit.page.get_by_role("link", name="b", exact=True).last.click()
        expect(main).to_contain_text("This bucket is being moved to cell a")
        expect(main).to_contain_text("nos-ec cells move mail --to a continues it; with --to b it gives up the move")
        expect(main).to_contain_text("It has 1 current object")
        visit.go("/cells/b/buckets")
        expect(visit.page.locator("section.panel", has_text="The largest buckets")).to_contain_text(
            "is being moved to a"
        )
        visit.go("/cells/a/buckets/one?bucket=photos")
        assert visit.page.get_by_role("heading", name="Where it is").count() == 0


def test_a_move_is_under_way_while_its_mover_holds_its_lease(settings: Settings) -> None:
    set_move(settings, "b", MoveState.LEAVING, "a")
    with open_system(settings.of_cell("b")) as system:
        assert read_moves(system.metadata).stalled == {"mail"}
        system.metadata.acquire_lease(mover_lease(7), system.clock.now_ms(), 60_000, "")
        found = read_moves(system.metadata)
        assert ([one.bucket for one in found.rows], found.stalled) == (["mail"], set())


def test_old_copies_are_shown_as_such(browser: Browser, settings: Settings) -> None:
    put_in(settings, "b", "mail", "letter")
    set_move(settings, "b", MoveState.GONE, "c")
    with serving(settings, *NAMES) as served, visiting(browser, served.url) as visit:
        assert "No bucket is being moved." in visit.go("/")
        visit.go("/cells/b/buckets")
        largest = visit.page.locator("section.panel", has_text="The largest buckets")
        expect(largest).to_contain_text("old copies: moved to c")
        largest.get_by_role("link", name="mail", exact=True).click()
        main = visit.page.locator("main")
        expect(main).to_contain_text("This bucket was moved to cell c")
        expect(main).to_contain_text("nos-ec cells purge mail --from b")
        assert visit.page.locator(".failed").count() == 0
        assert visit.severe_findings() == []
