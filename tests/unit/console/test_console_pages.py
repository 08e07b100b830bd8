"""What the pages show, from figures alone; and how they write figures and names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from jinja2 import TemplateError
from starlette.requests import Request

from nos_ec.composition.wiring import System
from nos_ec.console import flow, overview, view
from nos_ec.console.alerts import RULES, Alert, Verdict
from nos_ec.console.cells import page
from nos_ec.console.cells.page import Row
from nos_ec.console.last_night import Daemons, Filling, Growth
from nos_ec.console.overview import Backlog
from nos_ec.console.panels import Panel
from nos_ec.console.svg import HEIGHT, WIDTH, segments, stacked_area
from nos_ec.console.view import NAVIGATION, UNKNOWN, View
from nos_ec.core.expiry import DAY_MS
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import LandingId, ObjectKey, timed_id
from nos_ec.core.publishing.slots import member_lease, slot_lease
from nos_ec.core.states import BlockKind, BlockState, ObjectState
from nos_ec.engine.figures.cost_history import CostPoint
from nos_ec.engine.figures.daemons import Daemon
from nos_ec.engine.figures.events import EventKind, Outcome, StoreEvent
from nos_ec.engine.figures.header_survey import HeadersFound
from nos_ec.engine.texts import printable
from nos_ec.monitoring.sources import StoreFigures
from nos_ec.ports.metadata import Lease, ObjectRow, Totals, WaitingRow
from tests.rig.fakes.clock import FakeClock

NOW_MS = 1_700_000_000_000
GEOMETRY = Geometry(8, 3, 131_072, 32, 4)
NOTHING = Totals({}, *[0] * 19)
TOTALS = replace(NOTHING, live_bytes=1000, dead_bytes=200, overhead_bytes=100, queued_bytes=50, stripes=1)
REPOSITORY = Path(__file__).parents[3]
TEMPLATES = Path(view.__file__).parent / "templates"
HOSTILE = "<script>alert(1)</script>\u202egnp.exe\x1b[31m\u2066" + "n" * 900


def figures(totals: Totals, at_ms: int = NOW_MS, headers: HeadersFound | None = None) -> StoreFigures:
    return StoreFigures(totals, at_ms, GEOMETRY, None, None, None, headers=headers)


def landing_id(at_ms: int) -> LandingId:
    return LandingId(timed_id(at_ms, bytes(10)))


# --- cells ---------------------------------------------------------------------------------------------------------
def waiting(objects: int, oldest_ms: int | None) -> Backlog:
    return Backlog(objects, 10 * objects, 0, 0, oldest_ms, 60_000, 0, 0)


def test_cells_are_summed_up_by_their_bytes() -> None:
    small, none = page.held(figures(TOTALS), waiting(5, 70_000)), page.held(figures(NOTHING), waiting(0, None))
    large = page.held(figures(replace(NOTHING, live_bytes=9_000, stripes=1)), waiting(1, 80_000))
    assert small is not None
    assert large is not None
    assert small.raw_per_live == pytest.approx(overview.space(figures(TOTALS), None).bars[0].total)
    assert large.raw_per_live == pytest.approx(1.375)
    rows = [Row(name, 1, held=one) for name, one in (("a", small), ("b", large), ("c", none), ("d", None))]
    found = page.total(rows)
    assert found.raw_per_live == pytest.approx(((small.raw_per_live or 0) * 1_000 + 1.375 * 9_000) / 10_000)
    assert found.utilisation == pytest.approx(10_000 / (2 << 20))
    assert (found.waiting_objects, found.waiting_bytes, found.oldest_ms) == (6, 60, 80_000)
    assert page.held(None, waiting(1, 1)) is page.held(figures(TOTALS), None) is None
    assert page.total([]).raw_per_live is None


def test_costs_of_cells_are_compared_part_by_part() -> None:
    dear, cheap = (
        page.held(figures(TOTALS), waiting(0, None)),
        page.held(figures(replace(NOTHING, live_bytes=9_000, stripes=1)), waiting(0, None)),
    )
    empty = page.held(figures(NOTHING), waiting(0, None))
    rows = [Row(name, 1, held=one) for name, one in (("a", dear), ("b", cheap), ("c", empty), ("away", None))]
    found = page.cost_bars(rows)
    assert [bar.name for bar in found] == ["a", "b", "Together"]
    assert [sum(one.size for one in bar.segments) < 1000 for bar in found] == [False, True, True]
    values = [{one.part: one.value for one in bar.segments} for bar in found]
    assert values[0]["dead"] == pytest.approx(200 / 1000 * 1.375)
    assert values[2]["dead"] == pytest.approx(200 / 10_000 * 1.375)
    assert values[2]["coding"] == pytest.approx(3 / 8)
    assert [bar.name for bar in page.cost_bars(rows[:1] + rows[2:])] == ["a"], "a sum of one cell says nothing new"
    assert page.cost_bars(rows[2:]) == []


def test_a_wait_that_is_too_long_is_marked() -> None:
    long_ms = 60_000 + flow.LATE_MS
    found = [page.held(figures(TOTALS), waiting(1, wait_ms)) for wait_ms in (long_ms, long_ms + 1)]
    assert [one.is_late for one in found if one is not None] == [False, True]
    rows = [Row("a", 1, held=one) for one in found]
    assert (page.total(rows[:1]).is_late, page.total(rows).is_late) == (False, True)


def test_what_went_wrong_in_any_cell_is_listed_the_newest_first() -> None:
    def event(kind: EventKind, outcome: Outcome, at_ms: int) -> StoreEvent:
        return StoreEvent(kind, outcome, at_ms, at_ms, 1, None, "p", "text")

    of_a = [event(EventKind.GC, Outcome.DONE, 9), event(EventKind.SCRUB, Outcome.PROBLEMS, 5)]
    of_b = [event(EventKind.LEASE, Outcome.DONE, 7), event(EventKind.DUMP, Outcome.FAILED, 3)]
    gone = [Daemon("consumer", name, "1", 0, 0, ended_ms, 0) for name, ended_ms in (("dead", None), ("stopped", 8))]
    rows = [
        Row("a", 1, events=of_a),
        Row("b", 1, events=of_b, daemons=Daemons([], gone, [], [], 0)),
        Row("c", 1, "away"),
    ]
    found = page.troubles(rows)
    assert [(name, one.at_ms) for name, one in found.events] == [("b", 7), ("a", 5), ("b", 3)]
    assert [(name, one.process) for name, one in found.silent] == [("b", "dead")]
    many = page.troubles([Row("a", 1, events=of_a[1:] * (page.TROUBLES_MAX + 2))])
    assert (len(many.events), many.more) == (page.TROUBLES_MAX, 2)


def test_a_cell_is_full_by_the_faster_growth() -> None:
    growth = [Growth(DAY_MS, 10, 5_000), Growth(7 * DAY_MS, 10, 4_000), Growth(9 * DAY_MS, -1, None)]
    assert Row("a", 1, filling=Filling(1, 1, 0.0, growth)).full_in_ms == 4_000
    assert Row("a", 1, filling=Filling(1, 1, 0.0, growth[2:])).full_in_ms is None
    assert Row("a", 1).full_in_ms is None


@pytest.mark.parametrize("template", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_links_of_a_page_stay_in_its_cell(template: Path) -> None:
    """Paths of pages begin with `base`, but for those that all cells share."""
    text = re.sub(r"{#.*?#}", "", template.read_text(), flags=re.DOTALL)
    places = re.findall(r'(?:href|action|src|data-source)="(/[^"]*)', text)
    assert [place for place in places if not re.match(r"/(static/|cells/|login$|logout$|bucket$|$)", place)] == []


def test_documents_that_pages_name_have_these_sections() -> None:
    text = "".join(path.read_text() for path in TEMPLATES.glob("*.html")) + " ".join(rule.runbook for rule in RULES)
    places = set(re.findall(r"docs/[A-Z]+\.md(?:#[a-z0-9-]+)?", text))
    assert len(places) > len(RULES)
    for place in places:
        name, _, section = place.partition("#")
        headings = re.findall("^#+ (.*)$", (REPOSITORY / name).read_text(), re.MULTILINE)
        sections = {re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-") for one in headings}
        assert section in sections or not section, place


# --- overview ------------------------------------------------------------------------------------------------------
def test_the_parts_of_a_cost_add_up_and_are_compared_with_the_target_and_replicas() -> None:
    found = overview.space(figures(TOTALS, headers=HeadersFound(NOW_MS, 30, 100, 3)), 1.2)
    now, target, replicas = found.bars
    parts = {one.part: one.value for one in now.segments}
    assert parts == pytest.approx(
        {"live": 1, "coding": 0.375, "headers": 0.04125, "padding": 0.09625, "dead": 0.275, "landing": 0.05}
    )
    assert now.total == pytest.approx(sum(parts.values()))
    assert target.total == pytest.approx(1.375 * 1.2 + 0.1375)
    assert (replicas.name, replicas.total) == ("Three replicas", 3.0)
    assert overview.used_parts(found.bars) == ["live", "coding", "headers", "padding", "dead", "landing", "replicas"]


def test_an_empty_store_has_no_costs() -> None:
    found = overview.space(figures(NOTHING), 1.2)
    assert (list(found.bars), found.utilisation, found.space_amplification) == ([], None, None)


def test_a_store_without_a_target_is_compared_with_replicas_only() -> None:
    assert [bar.name for bar in overview.space(figures(TOTALS), None).bars] == ["Now", "Three replicas"]


def test_the_history_leaves_out_times_without_live_bytes() -> None:
    points = [
        CostPoint(NOW_MS - hours * 3_600_000, live, 10, 0, 0, 10, -1, 5)
        for hours, live in ((50, 100), (3, 0), (2, 100), (1, 100), (0, 100))
    ]
    found = overview.history(points, GEOMETRY, NOW_MS)
    assert [at_ms for at_ms, _ in found.points] == [NOW_MS - hours * 3_600_000 for hours in (0, 1, 2, 50)]
    assert overview.used_columns(found.points) == ["live", "coding", "undivided", "dead", "landing"]
    assert {shape.part for shape in found.day.shapes} == {"live", "coding", "undivided", "dead", "landing"}


def test_rates_are_those_of_the_last_ten_minutes() -> None:
    works = overview.Works()
    assert works.rates() == overview.Rates(None, None, None)
    for minute in range(30):
        at_ms = NOW_MS + minute * 60_000
        written = replace(TOTALS, user_bytes_written=minute * 6000, copied_bytes_written=minute * 600)
        works.add(figures(written, at_ms))
        works.add(figures(written, at_ms + 1))
    assert works.rates() == overview.Rates(600_000, 100.0, 10.0)
    assert len(works.read()) == 30


def test_lost_rows_have_no_rate() -> None:
    works = overview.Works()
    works.add(figures(replace(TOTALS, user_bytes_written=5)))
    works.add(figures(TOTALS, NOW_MS + 60_000))
    assert works.rates() == overview.Rates(None, None, None)


def test_rates_do_not_count_work_from_before_the_clock_was_set_back() -> None:
    works, minutes = overview.Works(), [*range(60), *range(30, 50)]
    for written, minute in enumerate(minutes):
        works.add(figures(replace(TOTALS, user_bytes_written=written * 6000), NOW_MS + minute * 60_000))
    assert works.rates() == overview.Rates(600_000, 100.0, 0.0)
    assert [work.at_ms for work in works.read()] == [NOW_MS + minute * 60_000 for minute in range(50)]


def test_only_live_leases_hold_slots() -> None:
    leases = [Lease(slot_lease(slot), slot, NOW_MS + (1 if slot < 10 else 0)) for slot in range(16)]
    assert overview.held_slots([*leases, Lease("gc", 1, NOW_MS + 1)], NOW_MS) == 10


# --- flow ----------------------------------------------------------------------------------------------------------
def test_stages_show_what_they_hold() -> None:
    blocks = {(BlockKind.FRESH, BlockState.OPEN): 2, (BlockKind.FRESH, BlockState.FENCED): 1}
    found = flow.stages(replace(TOTALS, blocks=blocks), None, 0, {})
    assert (found.open_blocks, found.fenced_blocks, found.oldest_ms) == ({"fresh": 2}, 1, None)


def test_a_partition_without_a_consumer_or_a_known_time_says_so() -> None:
    found = flow.partitions(3, {0: "consumer-a"}, {0: NOW_MS, 1: NOW_MS - 5000}, NOW_MS, 5000)
    assert found == [
        flow.Partition(0, "consumer-a", 0, is_late=False),
        flow.Partition(1, None, 5000, is_late=False),
        flow.Partition(2, None, None, is_late=False),
    ]
    assert flow.stuck(found) == []


def test_who_holds_late_partitions_is_named_the_longest_wait_first() -> None:
    until_ms = {0: NOW_MS - 6000, 1: NOW_MS - 9000, 2: NOW_MS - 7000, 3: NOW_MS}
    found = flow.partitions(5, {0: "a", 2: "a", 3: "b"}, until_ms, NOW_MS, 5000)
    assert [one.is_late for one in found] == [True, True, True, False, False]
    assert flow.stuck(found) == [flow.Stuck(None, [1], 9000), flow.Stuck("a", [0, 2], 7000)]


def test_partitions_that_nobody_holds_are_named_before_they_are_late() -> None:
    until_ms = {0: NOW_MS - 900, 1: NOW_MS - 2000, 2: NOW_MS - 3000, 3: NOW_MS - 4000}
    found = flow.partitions(5, {3: "a"}, until_ms, NOW_MS, 5000)
    assert flow.unheld(found) == flow.Stuck(None, [1, 2], 3000), "0 has just been published, and nothing is known of 4"
    assert flow.stuck(found) == []
    late = flow.partitions(5, {3: "a"}, until_ms, NOW_MS, 2500)
    assert flow.unheld(late) is None
    assert [one.partitions for one in flow.stuck(late)] == [[3], [2]]


def test_flow_names_what_nobody_holds_and_whose_lease_has_expired() -> None:
    away: Panel[object] = Panel(None, None, "away")
    others = {"stages": away, "lag": away, "oldest": away, "group": "g", "stuck": flow.stuck, "unheld": flow.unheld}
    free = flow.partitions(2, {0: "a"}, {0: NOW_MS, 1: NOW_MS - 90_000}, NOW_MS, 900_000)
    held = flow.leases([Lease("consumer-a", 3, NOW_MS + 500), Lease("consumer-b", 4, NOW_MS - 90_000)], NOW_MS)
    page = rendered("/flow", "flow.html", partitions=Panel(free, NOW_MS), leases=Panel(held, NOW_MS), **others)
    assert "No consumer holds partition 1 now, where a message has waited for 90 s." in page
    assert page.count("its process hangs, was killed, or cannot reach the metadata") == 1


def test_a_slow_message_log_makes_no_message_wait() -> None:
    clock = FakeClock(NOW_MS)

    class Slow:
        def holders(self) -> dict[int, str]:
            clock.advance(5000)
            return {}

        def passed_until(self) -> dict[int, int]:
            asked_ms = clock.now_ms()
            clock.advance(5000)
            return {0: asked_ms, 1: asked_ms - 3000}

        def close(self) -> None:
            pass

    consumer = SimpleNamespace(linger_ms=1000, linger_max_ms=1000)
    settings = SimpleNamespace(log=SimpleNamespace(partitions=2), consumer=consumer)
    worker = SimpleNamespace(group_progress=lambda _: Slow())
    system = cast(System, SimpleNamespace(clock=clock, settings=settings, worker=worker))
    assert [one.waits_ms for one in flow.Readings(system).partitions()] == [0, 3000]


def test_what_waits_longest_is_named_and_counted_by_bucket() -> None:
    rows = [
        WaitingRow(landing_id(NOW_MS - 1000 * number), number, 0, NOW_MS + number - 1, ObjectState.QUEUED, 10)
        for number in range(30)
    ]
    keys = {number: ObjectKey("b" if number % 3 else "<b>\u202e", "n") for number in range(1, 30)}
    objects = {
        number: ObjectRow(number, key, 1, 10, 0, bytes(16), ObjectState.QUEUED, None, None, 0)
        for number, key in keys.items()
    }
    found = flow.oldest(rows, objects, NOW_MS)
    assert (len(found.objects), found.examined) == (flow.OLDEST_SHOWN, 30)
    assert (found.objects[0].key, found.objects[0].is_due, found.objects[2].is_due) == (None, True, False)
    assert found.objects[5].age_ms == 5000
    assert found.buckets == [("b", 20), ("<b>\u202e", 9)]


def test_leases_tell_who_publishes_and_who_writes() -> None:
    found = flow.leases(
        [
            Lease(member_lease("producer-x"), 1, NOW_MS + 1),
            Lease(member_lease("producer-dead"), 1, NOW_MS),
            Lease(slot_lease(3), 2, NOW_MS + 1),
            Lease("consumer-a", 3, NOW_MS + 500),
            Lease("gc", 4, NOW_MS - 500),
        ],
        NOW_MS,
    )
    assert (found.producers, found.held_slots) == (["producer-x"], 1)
    assert found.writers == [flow.Holder("consumer-a", 3, 500), flow.Holder("gc", 4, -500)]


# --- charts --------------------------------------------------------------------------------------------------------
def test_the_segments_of_a_bar_follow_each_other() -> None:
    found = segments({"a": 1.0, "none": 0.0, "b": 3.0}, 8.0)
    assert [(one.part, one.start, one.size) for one in found] == [("a", 0.0, 125.0), ("b", 125.0, 375.0)]


def test_an_area_chart_has_gaps_where_nothing_is_known() -> None:
    hours = [0, 1, 2, 10, 11]
    chart = stacked_area([(NOW_MS + hour * 3_600_000, {"a": 1.0, "b": hour / 10}) for hour in hours], 3 * 3_600_000)
    assert [shape.part for shape in chart.shapes] == ["a", "b", "a", "b"]
    places = [tuple(map(float, one.split(","))) for shape in chart.shapes for one in shape.points.split()]
    assert all(0 <= across <= WIDTH and 0 <= down <= HEIGHT for across, down in places)
    assert [tick.text for tick in chart.values] == ["0", "0.5", "1", "1.5", "2", "2.5"]
    assert 2 <= len(chart.times) <= 9


@pytest.mark.parametrize("most", [0.004, 0.7, 1.39, 2.5, 3.0, 12.0, 1000.0])
def test_an_axis_has_few_round_marks(most: float) -> None:
    chart = stacked_area([(NOW_MS, {"a": most}), (NOW_MS + DAY_MS, {"a": most})], DAY_MS)
    assert 3 <= len(chart.values) <= 7
    assert float(chart.values[-1].text) >= most
    assert chart.values[1].text.strip("0.")[0] in "125"


def test_one_point_is_no_chart() -> None:
    assert stacked_area([(NOW_MS, {"a": 1.0})], DAY_MS).shapes == ()


# --- text ----------------------------------------------------------------------------------------------------------
def test_names_show_what_would_be_invisible_or_turn_the_text_around() -> None:
    assert printable("a\u202eb\u2066\x00\x1b\n\u00a0\ufeff\udc80é 日") == (
        "a\\u202eb\\u2066\\x00\\x1b\\n\\xa0\\ufeff\\udc80é 日"
    )


def test_figures_have_units_and_unknown_ones_a_dash() -> None:
    assert [view.size_or_unknown(size) for size in (0, 1023, 1024, 5 << 30, 3 << 60)] == [
        "0 B", "1023 B", "1.0 KiB", "5.0 GiB", "3072.0 PiB",
    ]  # fmt: skip
    assert [view.duration_text(ms) for ms in (0, 1500, 60_000, 150_000, 3 * 3_600_000, 5 * DAY_MS)] == [
        "0 s", "1.5 s", "60 s", "2.5 min", "3.0 h", "5.0 days",
    ]  # fmt: skip
    assert (view.count_text(12345), view.ratio_text(1.3914), view.percent_text(0.98765)) == (
        "12,345",
        "1.391",
        "98.77 %",
    )
    assert view.utc_text(NOW_MS) == "2023-11-14T22:13:20Z"
    assert [view.counted_text(count, "copy", "copies") for count in (0, 1, 2000)] == [
        "0 copies",
        "1 copy",
        "2,000 copies",
    ]
    unknown = {text(None) for text in (view.size_or_unknown, view.duration_text, view.count_text, view.ratio_text)}
    assert unknown | {view.percent_text(None), view.rate_text(None)} == {UNKNOWN}


def rendered(path: str, template: str, **values: Any) -> str:
    request = Request({"type": "http", "path": path, "headers": [], "method": "GET", "query_string": b""})
    return bytes(View(f"/a/{HOSTILE[:40]}").page(request, template, "Flow", **values).body).decode()


def test_templates_leave_the_plural_to_one_function() -> None:
    """`counted` writes a number with its noun: one of them is not `1 objects`."""
    plural = re.compile(r"\|(count|length) (\}\}|~ \") ?([a-z]+ )?[a-z]+s\b")
    templates = sorted((Path(view.__file__).parent / "templates").glob("*.html"))
    assert len(templates) > 10
    assert [(path.name, found[0]) for path in templates for found in plural.finditer(path.read_text())] == []


def test_every_column_of_numbers_says_what_it_means() -> None:
    heads = re.compile(r'<th scope="col" class="number">(?!\{\{ parts(_of)?\.term\()')
    assert [
        (path.name, head[0]) for path in TEMPLATES.glob("*.html") for head in heads.finditer(path.read_text())
    ] == []


def test_hostile_names_are_text() -> None:
    objects = [flow.Waiting(ObjectKey("b\u202e", HOSTILE), 1, 1, ObjectState.QUEUED, False)]
    page = rendered(
        "/flow",
        "flow.html",
        group=HOSTILE,
        stages=Panel(None, None, f"away: {HOSTILE}"),
        lag=Panel(None, None, HOSTILE),
        stuck=flow.stuck,
        unheld=flow.unheld,
        partitions=Panel([flow.Partition(0, HOSTILE, 5000, is_late=True)], NOW_MS),
        oldest=Panel(flow.Oldest(objects, [(HOSTILE, 1)], 1), NOW_MS),
        leases=Panel(flow.Leases([HOSTILE], 1, 16, [flow.Holder(HOSTILE, 1, 1)], 0), NOW_MS),
    )
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;\\u202egnp.exe\\x1b[31m\\u2066") >= 6
    assert not any((ord(char) < 32 and char != "\n") or char in "\u202e\u2066" for char in page)


def test_a_page_without_any_answer_still_has_all_panels() -> None:
    away: Panel[object] = Panel(None, None, "the database does not answer")
    page = rendered("/flow", "flow.html", group="g", stages=away, lag=away, partitions=away, oldest=away, leases=away)
    assert page.count("the database does not answer") == 4
    assert page.count("<h2>") == 4


def wrong(*alerts: Alert, daemons: Daemons | None, missing_figures: tuple[str, ...] = ()) -> str:
    """What Overview says is wrong, if all else is unknown."""
    away: Panel[Any] = Panel(None, None, "away")
    others = ("figures", "history", "backlog", "lag", "free", "landing_free", "log", "run", "bound")
    values = dict.fromkeys(others, away) | {"alerts": alerts, "missing_figures": missing_figures, "processes": {}}
    page = rendered("/", "overview.html", daemons=Panel(daemons, NOW_MS), **values)
    return page[page.index("What is wrong") : page.index("<details>")]


def test_overview_never_says_that_nothing_is_wrong_without_knowing_it() -> None:
    fine, unknown = (Alert(RULES[number], verdict) for number, verdict in enumerate((Verdict.FINE, Verdict.UNKNOWN)))
    known = wrong(fine, unknown, daemons=None)
    assert "None of the rules fires now: 1 rule has been judged." in known
    assert "failed" not in known
    assert "More may be wrong" in wrong(fine, unknown, daemons=None, missing_figures=("samples",))
    blind = wrong(unknown, daemons=None, missing_figures=("figures", "samples"))
    assert "It is not known whether anything is wrong: no rule can be judged now." in blind
    assert "None of the rules fires" not in blind


def test_overview_names_services_of_which_no_daemon_is_alive() -> None:
    silent = Daemon("consumer", HOSTILE, "1", 0, 0, None, 0)
    text = wrong(Alert(RULES[0], Verdict.FINE), daemons=Daemons([], [silent], [], [], 0))
    assert "No consumer is alive." in text
    assert "None of the rules fires" not in text
    assert "<script>" not in text
    alive = Daemons([replace(silent, process="another")], [silent], [], [], 0)
    assert "is alive" not in wrong(Alert(RULES[0], Verdict.FINE), daemons=alive)


def test_an_old_figure_of_another_panel_says_so() -> None:
    stages = Panel(flow.stages(TOTALS, None, 0, {}), NOW_MS)
    others: Panel[object] = Panel(None, None, "away")
    old = Panel(7, NOW_MS, "the message <log> does not answer")
    for lag, said in (
        (Panel(7, NOW_MS), "<p>7 messages are not committed</p>"),
        (old, "the message &lt;log&gt; does not answer)</p>"),
        (replace(old, value=None, at_ms=None), "<p>the message &lt;log&gt; does not answer</p>"),
    ):
        page = rendered(
            "/flow", "flow.html", group="g", stages=stages, lag=lag, partitions=others, oldest=others, leases=others
        )
        assert said in page


def test_the_navigation_marks_the_page() -> None:
    page = rendered("/flow", "error.html", text="")
    assert '<a href="/flow" aria-current="page">' in page
    assert page.count("aria-current") == 1
    assert len({path for path, _ in NAVIGATION}) == len(NAVIGATION)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Run `nos-ec gc plan`.", [("Run ", False), ("nos-ec --cell b gc plan", True), (".", False)]),
        ("`nos-ec cells moves` names it", [("nos-ec cells moves", True), (" names it", False)]),
        ("`ceph osd perf`", [("ceph osd perf", True)]),
        ("a name with ` \x1b", [("a name with ` \\x1b", False)]),
    ],
)
def test_commands_are_code_and_those_of_one_cell_name_it(text: str, shown: list[tuple[str, bool]]) -> None:
    assert view.with_commands(text, "nos-ec --cell b") == shown


def test_a_command_of_an_advice_is_shown_as_code_and_escaped() -> None:
    rule = replace(RULES[0], advice="Run `nos-ec <check>` & wait.")
    assert "Run <code>nos-ec &lt;check&gt;</code> &amp; wait." in wrong(Alert(rule, Verdict.FIRING), daemons=None)


def test_a_template_with_an_unknown_value_fails() -> None:
    with pytest.raises(TemplateError):
        rendered("/flow", "flow.html")
