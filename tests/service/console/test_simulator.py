"""The Simulator on a real store: uploads that are limited, buckets, cancelling, a killed child, and who may ask."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from nos_ec.composition.wiring import System
from nos_ec.console.access.login_token import LoginTokens
from nos_ec.console.app import create_app
from nos_ec.console.panels import Panels
from nos_ec.console.simulator import page
from tests.rig.browser import Visit, running_browser, visiting
from tests.service.conftest import WAIT_S_MAX, Bench
from tests.service.console.test_console import TOKEN, serving
from tests.unit.console.test_console_security import SAME, Client, csrf_of, log_in

LIST = b"".join(b"%d\n" % (100 + 37 * number % 3000) for number in range(2000))
HOSTILE = "<script>alert(1)<|script>\u202egpj.exe\x1b[31m"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture
def client(system: System) -> Iterator[Client]:
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        yield Client(create_app(system, panels, None, bytes_that_differ))


def bytes_that_differ(count: int) -> bytes:
    return os.urandom(count)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations of a few seconds."""
    monkeypatch.setattr(page, "NICE", 0)
    monkeypatch.setattr(page, "WINDOWS", (200, 1000))
    monkeypatch.setattr(page, "TARGETS", (1.4, 1.5))
    monkeypatch.setattr(page, "GC_BLOCKS", 10)


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations that do not end during a test."""
    monkeypatch.setattr(page, "TARGETS", (1.05,) * 20)
    monkeypatch.setattr(page, "GC_BLOCKS", 2000)


def upload(client: Client, data: bytes, csrf: str = "", workload: str = "") -> httpx.Response:
    fields = {"csrf": csrf, "workload": workload}
    return client.post("/simulator/upload", data=fields, files={"sizes": ("a.txt", data)}, headers=SAME)


def until(look: Callable[[], object]) -> None:
    ends = time.monotonic() + WAIT_S_MAX
    while not look():
        assert time.monotonic() < ends, "too late"
        time.sleep(0.05)


def result(client: Client, answer: httpx.Response) -> str:
    """The page of a simulation once it has ended."""
    assert answer.status_code == 303, answer.text
    place = answer.headers["location"]
    until(lambda: "data-refresh" not in client.get(place).text)
    return client.get(place).text


# --- without a browser -----------------------------------------------------------------------------
@pytest.mark.usefixtures("short")
def test_an_uploaded_list_is_computed_and_not_kept(client: Client) -> None:
    answer = upload(client, LIST, workload="A")
    text = result(client, answer)
    assert "<strong>done</strong>" in text
    assert "2,000 sizes" in text
    assert text.count('<svg class="map curve"') == 2
    assert "nos-ec simulate packing --sizes sizes.txt --policy best --window 1000" in text
    assert "nos-ec simulate gc --workload A --space-amp 1.5 --blocks 10" in text
    assert client.get(f"{answer.headers['location']}/sizes.txt").status_code == 404
    assert answer.headers["location"] in client.get("/simulator").text


@pytest.mark.usefixtures("short")
def test_a_bucket_is_sampled_and_its_sizes_can_be_had(bench: Bench, system: System, client: Client) -> None:
    for number in range(40):
        bench.put(system, f"n{number}", bench.data(1000 + number), "photos")
        bench.put(system, f"n{number}", bench.data(7), "mail")
    answer = client.post("/simulator/bucket", data={"csrf": "", "bucket": "photos"}, headers=SAME)
    text = result(client, answer)
    assert "40 objects and parts, found in 1 of 1 range of object ids: all of the bucket" in text
    sizes = client.get(f"{answer.headers['location']}/sizes.txt")
    assert sizes.text.split() == [str(1000 + number) for number in range(40)]
    assert sizes.headers["content-disposition"] == 'attachment; filename="sizes.txt"'
    nothing = client.post("/simulator/bucket", data={"csrf": "", "bucket": HOSTILE}, headers=SAME)
    text = result(client, nothing)
    assert "no object of bucket" in text
    assert "<script>alert" not in text
    assert client.post("/simulator/bucket", data={"csrf": "", "bucket": "b" * 256}, headers=SAME).status_code == 400


def test_a_large_bucket_is_read_in_part(
    bench: Bench, system: System, client: Client, monkeypatch: pytest.MonkeyPatch, short: None
) -> None:
    for number in range(40):
        bench.put(system, f"n{number}", bench.data(1000 + number), "photos")
    monkeypatch.setattr(page, "BUCKET_RANGE_IDS", 4)
    monkeypatch.setattr(page, "BUCKET_RANGES_MAX", 5)
    answer = client.post("/simulator/bucket", data={"csrf": "", "bucket": "photos"}, headers=SAME)
    assert "20 objects and parts, found in 5 of 10 ranges of object ids: about 50 % of the bucket" in result(
        client, answer
    )
    monkeypatch.setattr(page, "BUCKET_SIZES_MAX", 6)
    answer = client.post("/simulator/bucket", data={"csrf": "", "bucket": "photos"}, headers=SAME)
    assert "8 objects and parts, found in 2 of 10 ranges" in result(client, answer)


def test_files_are_limited_while_they_are_read(client: Client, monkeypatch: pytest.MonkeyPatch, short: None) -> None:
    assert upload(client, b"1" * (page.UPLOAD_BYTES_MAX + page.FORM_BYTES + 1)).status_code == 413
    just = upload(client, b"1" * (page.UPLOAD_BYTES_MAX + 1))
    assert (just.status_code, page.TOO_LARGE in just.text) == (413, True)
    many = upload(client, b"1\n" * (page.LINES_MAX + 101))
    assert (many.status_code, page.TOO_MANY in many.text) == (413, True)
    monkeypatch.setattr(page, "DRAINED_BYTES_MAX", 1 << 20)
    assert upload(client, b"1" * (page.UPLOAD_BYTES_MAX * 2)).status_code in (400, 413)
    broken = client.post("/simulator/upload", content=b"x", headers={**SAME, "Content-Type": "multipart/form-data"})
    assert broken.status_code == 400
    assert upload(client, LIST, workload="Z").status_code == 400
    assert "contains no sizes" in result(client, upload(client, b""))
    assert "line 2: &#39;abc&#39; is not a size" in result(client, upload(client, b"1\nabc\n"))


@pytest.mark.usefixtures("long")
def test_a_second_user_waits_and_anyone_who_is_logged_in_can_cancel(bench: Bench, system: System) -> None:
    file = bench.folder / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        app = create_app(system, panels, LoginTokens(file), bytes_that_differ)
        one, other, stranger = Client(app), Client(app), Client(app)
        assert (log_in(one), log_in(other)) == (303, 303)
        csrf = csrf_of(one.get("/simulator").text)
        for wrong in ("", csrf_of(other.get("/simulator").text), "0" * 64):
            assert upload(one, LIST, wrong).status_code == 403
            answer = one.post("/simulator/bucket", data={"csrf": wrong, "bucket": "b"}, headers=SAME)
            assert answer.status_code == 403
        fields = {"csrf": csrf, "bucket": "b"}
        assert one.post("/simulator/bucket", data=fields).status_code == 403, "of another site"
        assert upload(stranger, LIST).status_code == 401
        place = upload(one, LIST, csrf, "A").headers["location"]
        assert stranger.get(place).status_code == 401
        text = other.get("/simulator").text
        assert "Another one can begin when it has ended" in text
        assert 'type="file"' not in text
        mine = csrf_of(text)
        busy = upload(other, LIST, mine)
        assert (busy.status_code, "another simulation is running" in busy.text) == (409, True)
        assert other.post(f"{place}/cancel", data={"csrf": csrf}, headers=SAME).status_code == 403
        assert other.post(f"{place}/cancel", data={"csrf": mine}, headers=SAME).status_code == 303
        until(lambda: "<strong>cancelled</strong>" in one.get(place).text)
        until(lambda: 'type="file"' in other.get("/simulator").text)
        assert one.get("/simulator/nowhere").status_code == 404


# --- in a browser ----------------------------------------------------------------------------------
def send(visit: Visit, data: bytes, folder: Path, workload: str = "") -> None:
    """Send a file with the form of the Simulator."""
    file = folder / "sizes.txt"
    file.write_bytes(data)
    visit.go("/simulator")
    visit.page.get_by_label("File").set_input_files(file)
    visit.page.locator("#workload-upload").select_option(workload)
    visit.page.get_by_role("button", name="Simulate the list").click()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_operator_uploads_a_list_and_looks_at_the_curves(
    browser: Browser, system: System, tmp_path: Path, scheme: str
) -> None:
    look = {"color_scheme": scheme, "viewport": {"width": 360, "height": 640}}
    with serving(system) as url, visiting(browser, url, **look) as visit:
        visit.page.clock.install()
        visit.go("/simulator")
        assert visit.severe_findings() == []
        send(visit, LIST, tmp_path, "A")
        expect(visit.page.locator("strong", has_text="done")).to_be_visible()
        visit.requested.clear()
        visit.page.clock.fast_forward(60_000)
        assert visit.page.evaluate("() => 1") == 1
        assert visit.requested == [], "the page does not read itself again after the end"
        expect(visit.page.locator("svg.map")).to_have_count(2)
        assert visit.severe_findings() == []
        assert visit.page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
        link = visit.page.url
        send(visit, b"1\nabc\n", tmp_path)
        expect(visit.page.get_by_role("alert")).to_contain_text("'abc' is not a size")
        visit.go(link.removeprefix(url))
        expect(visit.page.locator("svg.map")).to_have_count(2)


@pytest.mark.usefixtures("short")
def test_a_file_that_is_too_large_is_refused_with_the_reason(browser: Browser, system: System, tmp_path: Path) -> None:
    with serving(system) as url, visiting(browser, url) as visit:
        send(visit, b"1000000\n" * (page.UPLOAD_BYTES_MAX // 8 + 100_000), tmp_path)
        expect(visit.page.get_by_role("alert")).to_have_text(re.compile("16 MiB|1,000,000 lines"))
        visit.were_refused(413)


@pytest.mark.usefixtures("long")
def test_an_operator_sees_the_progress_cancels_and_learns_that_a_child_was_killed(
    browser: Browser, system: System, tmp_path: Path
) -> None:
    with serving(system) as url, visiting(browser, url) as visit:
        send(visit, LIST, tmp_path, "B")
        expect(visit.page.get_by_role("progressbar")).to_be_visible()
        assert visit.severe_findings() == []
        visit.page.get_by_role("button", name="Cancel").click()
        expect(visit.page.locator("strong", has_text="cancelled")).to_be_visible()
        until(lambda: 'type="file"' in httpx.get(f"{url}/simulator").text)
        send(visit, LIST, tmp_path, "B")
        expect(visit.page.get_by_role("progressbar")).to_be_visible()
        for child in children():
            os.kill(child, signal.SIGKILL)
        expect(visit.page.get_by_role("alert")).to_contain_text("killed by SIGKILL")


def children() -> list[int]:
    """The ids of the simulations' processes that this process has started; waits for the first."""
    found: list[int] = []

    def look() -> bool:
        tasks = Path("/proc/self/task").glob("*/children")
        every = [int(one) for task in tasks for one in task.read_text().split()]
        found.extend(one for one in every if b"simulator.child" in Path(f"/proc/{one}/cmdline").read_bytes())
        return bool(found)

    until(look)
    return found
