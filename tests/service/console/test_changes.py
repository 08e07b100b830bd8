"""Changes in the console: by a named operator, of the state that was seen, recorded before they are made, or not at
all."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NoReturn
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

from nos_ec.composition.wiring import System
from nos_ec.console.access.login_token import find_login_tokens
from nos_ec.console.access.sessions import IDLE_MS_MAX
from nos_ec.console.app import Server, create_app
from nos_ec.console.panels import Panels
from nos_ec.core.errors import Conflict, Transient
from nos_ec.core.formats.audit_trail import AuditKind, Recorded
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.gc.control import Control, GcControl
from nos_ec.ports.metadata import ObjectRow
from tests.rig.browser import running_browser, visiting
from tests.rig.fakes.clock import FakeClock, SetClock
from tests.service.check.test_audit_trail import entries, folder_of
from tests.service.conftest import WAIT_S_MAX, Bench
from tests.unit.console.test_console_security import SAME, Client, csrf_of, log_in

VIEWER, ANN, BOB = ("a-token-of-more-than-16-characters", "the-token-of-ann-123", "the-token-of-bob-123")
HOSTILE = "<script>alert(1)</script>\u202egpj.exe\x1b[31m\r\n'\"&#x27;" + "n" * 900
CHANGES = (AuditKind.CHANGE, AuditKind.CHANGE_REFUSED)


def configure_changes(bench: Bench) -> None:
    for name, content in (("viewers", VIEWER), ("operators", f"ann:{ANN}\nbob:{BOB}\n")):
        file = bench.folder / name
        file.write_text(content)
        file.chmod(0o600)
    bench.config.write_text(
        f"{bench.config.read_text()}\n[trash]\nkeep_days = 7\n"
        '[console]\ntoken_file = "viewers"\noperators_file = "operators"\nchanges = true\n'
    )


@pytest.fixture
def system(bench: Bench) -> Iterator[System]:
    configure_changes(bench)
    with bench.open() as opened:
        yield opened


@pytest.fixture
def client(system: System) -> Iterator[Client]:
    tokens = find_login_tokens(system.settings, "127.0.0.1", anonymous=False)
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        yield Client(create_app(system, panels, tokens, os.urandom))


def as_ann(client: Client) -> Client:
    """A browser of its own in which ann has logged in."""
    own = Client(client.app)
    assert log_in(own, ANN) == 303
    return own


def form_of(client: Client, path: str = "/space") -> dict[str, str]:
    """The hidden fields of the forms of a page."""
    text = client.get(path).text
    return {name: html.unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="(.*?)"', text)}


def control(client: Client, form: dict[str, str], **more: str) -> Any:
    return client.post("/space/control", data=form | more, headers=SAME)


def trashed(bench: Bench, system: System, name: str) -> tuple[ObjectRow, str]:
    """A deleted object, and the path of its page."""
    key = bench.put(system, name, b"x")
    bench.delete(system, key)
    row = system.client.trash().find(key)
    query = {"bucket": "b", "name": name, "trash": f"{row.trash_until_ms}-{row.object_id}"}
    return row, f"?{urlencode(query)}"


def changes(bench: Bench) -> list[Recorded]:
    return entries(bench, *CHANGES)


# --- GC -------------------------------------------------------------------------------------------
def test_an_operator_pauses_limits_and_resumes_gc(bench: Bench, system: System, client: Client) -> None:
    ann, gc = as_ann(client), GcControl(system.metadata)
    answer = control(ann, form_of(ann), action="pause")
    assert (answer.status_code, answer.headers["location"]) == (303, "/space")
    assert gc.read() == Control(paused=True)
    assert control(ann, form_of(ann), action="limit", bytes_per_s="64MiB", operations_per_s="5").status_code == 303
    assert gc.read() == Control(True, 64 << 20, 5)
    assert 'value="67108864"' in ann.get("/space").text
    assert control(ann, form_of(ann), action="resume").status_code == 303
    assert control(ann, form_of(ann), action="limit", bytes_per_s="0").status_code == 303
    assert gc.read() == Control(False, 0, None)
    found = changes(bench)
    assert [(one.kind, one.operator) for one in found] == [(AuditKind.CHANGE, "ann")] * 4
    assert found[0].why.startswith("GC is paused, ")
    assert found[1].seen["before"] == {"paused": True, "bytes_per_s": None, "operations_per_s": None}
    assert found[1].seen["after"] == {"paused": True, "bytes_per_s": 64 << 20, "operations_per_s": 5}


def test_a_state_that_nobody_saw_is_not_changed(bench: Bench, system: System, client: Client) -> None:
    ann, gc = as_ann(client), GcControl(system.metadata)
    form = form_of(ann)
    gc.change(lambda _: Control(True, 1 << 20))
    answer = control(ann, form, action="limit", bytes_per_s="0")
    assert answer.status_code == 409
    assert "now GC is paused, at most 1.0 MiB/s" in answer.text
    assert (gc.read(), changes(bench)) == (Control(True, 1 << 20), [])


def test_a_change_that_loses_a_race_is_recorded_as_refused(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else changes the commands between the entry and the change."""
    gc, store = GcControl(system.metadata), system.metadata.store_note

    def late(*arguments: Any) -> bool:
        monkeypatch.undo()
        gc.change(lambda now: Control(True, now.bytes_per_s))
        return store(*arguments)

    monkeypatch.setattr(system.metadata, "store_note", late)
    with pytest.raises(Conflict, match="now GC is paused"):
        system.operator.changes().control_gc("ann", Control(), Control(False, 7))
    assert gc.read() == Control(True)
    assert [one.kind for one in changes(bench)] == list(CHANGES)


def test_a_change_that_fails_is_recorded_as_refused(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: Any) -> NoReturn:
        raise Transient("the database went away")

    row, _ = trashed(bench, system, "a")
    monkeypatch.setattr(system.metadata, "store_note", fail)
    monkeypatch.setattr(system.metadata, "undelete", fail)
    operator_changes = system.operator.changes()
    with pytest.raises(Transient):
        operator_changes.control_gc("ann", Control(), Control(paused=True))
    with pytest.raises(Transient):
        operator_changes.undelete("ann", row)
    found = changes(bench)
    assert [one.kind for one in found] == [*CHANGES, *CHANGES]
    assert all(one.why == "it may have been made or not: the database went away" for one in found[1::2])


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "limit", "bytes_per_s": "fast"},
        {"action": "limit", "bytes_per_s": "-1"},
        {"action": "limit", "bytes_per_s": "9999PiB"},
        {"action": "limit", "operations_per_s": "1e3"},
        {"action": "limit", "operations_per_s": "9999999999"},
        {"action": "<b>"},
        {"action": "pause", "seen": "{}"},
        {"action": "pause", "seen": ""},
    ],
)
def test_a_form_that_makes_no_sense_changes_nothing(
    bench: Bench, system: System, client: Client, wrong: dict[str, str]
) -> None:
    ann = as_ann(client)
    answer = control(ann, form_of(ann), **wrong)
    assert (answer.status_code, "<b>" in answer.text) == (400, False)
    assert (GcControl(system.metadata).read(), changes(bench)) == (Control(), [])


# --- who ------------------------------------------------------------------------------------------
def test_who_has_no_token_of_their_own_sees_no_form_and_changes_nothing(
    bench: Bench, system: System, client: Client
) -> None:
    row, query = trashed(bench, system, "a")
    form = form_of(as_ann(client))
    assert log_in(client, VIEWER) == 303
    pages = [client.get(path).text for path in ("/space", f"/objects/one{query}")]
    assert [re.findall(r'action="/(?:space/c|objects/u)', text) for text in pages] == [[], []]
    form["csrf"] = csrf_of(pages[0])
    for path in ("/space/control", f"/objects/undelete{query}"):
        answer = client.post(path, data=form | {"action": "pause"}, headers=SAME)
        assert (answer.status_code, "with a token of their own" in answer.text) == (403, True)
    assert (GcControl(system.metadata).read(), changes(bench)) == (Control(), [])
    assert system.client.trash().find(row.key) == row


def test_a_form_of_another_session_or_site_changes_nothing(bench: Bench, system: System, client: Client) -> None:
    ann, other = as_ann(client), as_ann(client)
    _, query = trashed(bench, system, "a")
    form = form_of(ann) | {"action": "pause"}
    for path in ("/space/control", f"/objects/undelete{query}"):
        for csrf in ("", "0" * 64, form_of(other)["csrf"], "\udc80".encode("utf-8", "replace").decode()):
            assert ann.post(path, data=form | {"csrf": csrf}, headers=SAME).status_code == 403
        for headers in ({"Sec-Fetch-Site": "same-site"}, {"Origin": "http://localhost:9480"}, {}):
            assert ann.post(path, data=form, headers=headers).status_code == 403
        assert Client(client.app).post(path, data=form, headers=SAME).status_code == 401
        assert ann.get(path).status_code == 405
    assert (GcControl(system.metadata).read(), changes(bench)) == (Control(), [])


def test_an_operator_who_is_removed_changes_nothing_more(bench: Bench, system: System, client: Client) -> None:
    ann = as_ann(client)
    form = form_of(ann)
    (bench.folder / "operators").write_text(f"bob:{BOB}\n")
    assert control(ann, form, action="pause").status_code == 401
    assert (GcControl(system.metadata).read(), changes(bench)) == (Control(), [])


def test_without_the_setting_operators_only_look(bench: Bench) -> None:
    configure_changes(bench)
    bench.config.write_text(bench.config.read_text().replace("changes = true", "changes = false"))
    with bench.open() as system, closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        tokens = find_login_tokens(system.settings, "127.0.0.1", anonymous=False)
        ann = as_ann(Client(create_app(system, panels, tokens, os.urandom)))
        page = ann.get("/space").text
        assert ("<span>ann</span>" in page, 'action="/space/control"' in page) == (True, False)
        form = {"csrf": csrf_of(page), "action": "pause", "seen": Control().text}
        assert control(ann, form).status_code == 404
        assert GcControl(system.metadata).read() == Control()


def test_nothing_changes_while_the_trail_cannot_be_written(bench: Bench, system: System, client: Client) -> None:
    ann = as_ann(client)
    row, query = trashed(bench, system, "a")
    shutil.rmtree(folder_of(bench), ignore_errors=True)
    folder_of(bench).write_text("not a folder")
    for path in ("/space/control", f"/objects/undelete{query}"):
        answer = ann.post(path, data=form_of(ann) | {"action": "pause"}, headers=SAME)
        assert (answer.status_code, "the audit trail cannot be written" in answer.text) == (503, True)
    assert GcControl(system.metadata).read() == Control()
    assert system.client.trash().find(row.key) == row


# --- undelete -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["a", HOSTILE])
def test_an_operator_brings_an_object_back(bench: Bench, system: System, client: Client, name: str) -> None:
    ann = as_ann(client)
    row, query = trashed(bench, system, name)
    page = ann.get(f"/objects/one{query}")
    assert "<script>alert" not in page.text
    (place,) = re.findall(r'method="post" action="(/objects/undelete.*?)"', page.text)
    answer = ann.post(html.unescape(place), data={"csrf": csrf_of(page.text)}, headers=SAME)
    assert answer.status_code == 303
    assert "Undelete" not in ann.get(answer.headers["location"]).text
    assert system.client.store().head(row.key).version == row.version
    (found,) = changes(bench)
    assert (found.operator, found.object, found.seen["version"]) == ("ann", f"b/{name}", row.version)
    again = ann.post(html.unescape(place), data={"csrf": csrf_of(page.text)}, headers=SAME)
    assert (again.status_code, "is not in the trash any more" in again.text) == (404, True)
    assert len(changes(bench)) == 1


def test_an_object_whose_name_is_in_use_stays_in_the_trash(bench: Bench, system: System, client: Client) -> None:
    ann = as_ann(client)
    row, query = trashed(bench, system, "a")
    bench.put(system, "a", b"newer")
    answer = ann.post(f"/objects/undelete{query}", data=form_of(ann), headers=SAME)
    assert (answer.status_code, "is in use: another version" in answer.text) == (409, True)
    assert system.client.trash().find(row.key) == row
    assert [(one.kind, one.object) for one in changes(bench)] == [(kind, "b/a") for kind in CHANGES]
    assert ann.post("/objects/undelete?bucket=b&name=a", data=form_of(ann), headers=SAME).status_code == 400


def test_what_somebody_else_brought_back_is_not_counted_as_done(bench: Bench, system: System) -> None:
    """Between the page that ann has seen, or the entry of her change, and the change."""
    row, _ = trashed(bench, system, "a")
    assert system.client.trash().undelete(row) == row
    with pytest.raises(Conflict, match="b/a has been brought back already; nothing was changed"):
        system.operator.changes().undelete("ann", row)
    assert system.client.store().head(row.key).version == row.version
    assert [(one.kind, one.operator, one.object) for one in changes(bench)] == [
        (kind, "ann", "b/a") for kind in CHANGES
    ]
    assert system.client.trash().undelete_many([row]) == []


def test_the_command_shows_who_changed_what(bench: Bench, system: System, client: Client) -> None:
    ann = as_ann(client)
    for name in ("a", "b"):
        _, query = trashed(bench, system, name)
        ann.post(f"/objects/undelete{query}", data=form_of(ann), headers=SAME)
    shown = bench.run("audit", "--object", "b/a", "--kind", "change").stdout.decode()
    assert ("operator ann" in shown, "object   b/a" in shown, "b/b" in shown, "1 entry" in shown) == (
        *(True, True, False, True),
    )
    found = json.loads(bench.run("audit", "--kind", "change", "--json").stdout)["entries"]
    assert [(one["operator"], one["object"]) for one in found] == [("ann", "b/a"), ("ann", "b/b")]


# --- crashes --------------------------------------------------------------------------------------
PROGRAM = """
import sys
from nos_ec.composition.wiring import open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.gc.control import Control
from nos_ec.settings import load_settings
from pathlib import Path
with open_system(load_settings(Path(sys.argv[1]), {})) as system:
    changes, can = system.operator.changes(), system.client.trash()
    if sys.argv[2] == "gc":
        changes.control_gc("ann", Control(), Control(paused=True))
    else:
        changes.undelete("ann", can.find(ObjectKey("b", "a")))
"""


@pytest.mark.timed
@pytest.mark.parametrize(
    ("what", "point", "is_made"),
    [
        ("gc", "audit.written", False),
        ("gc", "audit.recorded", False),
        ("gc", "gc.control_changed", True),
        ("undelete", "audit.written", False),
        ("undelete", "audit.recorded", False),
        ("undelete", "trash.undeleted", True),
    ],
)
def test_a_crash_leaves_no_change_without_an_entry(bench: Bench, what: str, point: str, is_made: bool) -> None:
    configure_changes(bench)
    with bench.open() as system:
        row, _ = trashed(bench, system, "a")
    program = bench.folder / "change.py"
    program.write_text(PROGRAM)
    killed = bench.run_python(str(program), str(bench.config), what, kill_at=point)
    assert killed.returncode == -9, killed.stderr
    with bench.open() as system:
        is_back = system.metadata.rows_of([row.key]) != {}
        assert (GcControl(system.metadata).read().paused, is_back) == (
            what == "gc" and is_made,
            what != "gc" and is_made,
        )
        assert [(one.kind, one.operator) for one in changes(bench)] == [(AuditKind.CHANGE, "ann")]


# --- in a browser ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@contextmanager
def serving(system: System) -> Iterator[str]:
    tokens = find_login_tokens(system.settings, "127.0.0.1", anonymous=False)
    with (
        closing(Panels(system.clock, WAIT_S_MAX)) as panels,
        Server(create_app(system, panels, tokens, os.urandom), "127.0.0.1", 0) as server,
    ):
        yield server.url


@pytest.mark.parametrize(
    "look", [{"color_scheme": "light"}, {"color_scheme": "dark", "viewport": {"width": 360, "height": 640}}]
)
def test_ann_and_bob_change_gc_at_the_same_time(
    browser: Browser, bench: Bench, system: System, look: dict[str, Any]
) -> None:
    with serving(system) as url, visiting(browser, url, **look) as ann, visiting(browser, url) as bob:
        for visit, token in ((ann, ANN), (bob, BOB)):
            visit.go("/space")
            visit.log_in(token)
            expect(visit.page.get_by_role("button", name="Pause GC")).to_be_visible()
        assert ann.severe_findings() == []
        assert ann.page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
        ann.page.get_by_role("button", name="Pause GC").click()
        expect(ann.page.get_by_text("it is paused until")).to_be_visible()
        bob.page.get_by_label("Bytes per second").fill("1MiB")
        bob.page.get_by_role("button", name="Limit GC").click()
        expect(bob.page.get_by_role("alert")).to_contain_text("now GC is paused")
        assert bob.severe_findings() == []
        bob.were_refused(409)
        bob.page.get_by_role("link", name="Space and GC").click()
        bob.page.get_by_label("Bytes per second").fill("1MiB")
        bob.page.get_by_role("button", name="Limit GC").click()
        expect(bob.page.get_by_text("1.0 MiB/s")).to_be_visible()
        assert [one.operator for one in changes(bench)] == ["ann", "bob"]


def test_a_viewer_sees_no_forms_and_a_session_that_has_ended_changes_nothing(
    browser: Browser, bench: Bench, system: System
) -> None:
    clock: FakeClock = SetClock(system.clock.now_ms())
    system.clock = clock
    with serving(system) as url, visiting(browser, url) as visit:
        visit.go("/space")
        visit.log_in(VIEWER)
        expect(visit.page.get_by_role("heading", level=1)).to_have_text("Space and GC")
        expect(visit.page.get_by_role("button", name="Pause GC")).to_have_count(0)
        expect(visit.page.get_by_text("These pages only read.")).to_be_visible()
        visit.page.get_by_role("button", name="Log out").click()
        expect(visit.page).to_have_title("Log in - nos_ec")
        visit.go("/space")
        visit.log_in(ANN)
        expect(visit.page.get_by_text("The audit trail records your changes.")).to_be_visible()
        visit.page.locator("form[action='/space/control'] input[name=csrf]").first.evaluate(
            "field => { field.value = '0'.repeat(64); }"
        )
        visit.page.get_by_role("button", name="Pause GC").click()
        expect(visit.page.get_by_role("alert")).to_have_text("The form was too old. Please try again.")
        visit.were_refused(403)
        visit.go("/space")
        clock.advance(IDLE_MS_MAX)
        visit.page.get_by_role("button", name="Pause GC").click()
        expect(visit.page.get_by_text("Your session has ended.")).to_be_visible()
        visit.were_refused(401)
        assert (GcControl(system.metadata).read(), changes(bench)) == (Control(), [])


def test_an_object_with_a_hostile_name_comes_back(browser: Browser, bench: Bench, system: System) -> None:
    row, query = trashed(bench, system, HOSTILE)
    with serving(system) as url, visiting(browser, url) as visit:
        visit.go("/")
        visit.log_in(ANN)
        expect(visit.page.get_by_role("heading", level=1)).to_have_text("Overview")
        visit.go(f"/objects/one{query}")
        assert visit.severe_findings() == []
        visit.page.get_by_role("button", name="Undelete").click()
        expect(visit.page.get_by_role("heading", level=1)).to_contain_text("\\u202egpj.exe")
        expect(visit.page.get_by_role("button", name="Undelete")).to_have_count(0)
    assert system.client.store().head(ObjectKey("b", HOSTILE)).version == row.version
    assert [one.object for one in changes(bench)] == [f"b/{HOSTILE}"]
