"""The pages of buckets on a real store: figures from a sample, documents as text, and no access key anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import expect

from nos_ec.composition.wiring import System
from nos_ec.console import buckets
from nos_ec.console.app import create_app
from nos_ec.console.buckets import bucket_page, document_lines
from nos_ec.console.panels import Panels
from nos_ec.core.expiry import ExpiryRule, encode_rules
from nos_ec.core.packing.lifetimes import Counts
from nos_ec.core.quotas.quota import Quota, account_record, encode
from nos_ec.core.versions import Versioning
from nos_ec.engine.figures import bucket_sample
from nos_ec.ports.metadata import ROOT_ACCOUNT, AccessKey, CannedAcl, DocumentKind, KeyState, Rights, Sums
from tests.rig.browser import running_browser, visiting
from tests.rig.sql.sql_plans import caught
from tests.service.conftest import WAIT_S_MAX, Bench
from tests.service.console.test_console import HOSTILE_NAMES, serving
from tests.unit.console.test_console_security import Client

POLICY = b'{"Version": "2012-10-17", "Statement": [{"Sid": "<script>alert(1)</script>\\u202e", "Effect": "Deny"}]}'
CORS = (
    b"<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod><AllowedOrigin>*</AllowedOrigin></CORSRule>"
    b"</CORSConfiguration>"
)


@pytest.fixture
def client(system: System) -> Iterator[Client]:
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        yield Client(create_app(system, panels, None, bytes))


def own(system: System, bucket: str) -> None:
    """Give a bucket all kinds of documents, and the store an access key."""
    metadata, now_ms = system.metadata, system.clock.now_ms()
    metadata.create_bucket(bucket, "alice", CannedAcl.PRIVATE, now_ms)
    rules = [ExpiryRule("old", prefix="logs/", days=30), ExpiryRule("never", enabled=False)]
    for kind, body in (
        (DocumentKind.POLICY, POLICY),
        (DocumentKind.CORS, CORS),
        (DocumentKind.LIFECYCLE, encode_rules(rules)),
        (DocumentKind.VERSIONING, Versioning.ENABLED.encode()),
    ):
        assert metadata.set_bucket_document(bucket, kind, body, now_ms)
    metadata.grant(bucket, "bob", Rights.READ | Rights.LIST, now_ms)
    key = AccessKey("AKIAHIDDENKEY", ROOT_ACCOUNT, b"hidden-secret", KeyState.ACTIVE, now_ms, "hidden note")
    metadata.add_access_key(key)


def test_a_small_store_shows_exact_figures_of_each_bucket(bench: Bench, system: System, client: Client) -> None:
    for number in range(3):
        bench.put(system, f"n{number}", bench.data(2000), "photos")
    bench.put(system, "a", bench.data(5000), "mail")
    page = client.get("/buckets").text
    assert "the figures are exact" in page
    assert "&plusmn;" not in page
    assert page.index("photos") < page.index("mail"), "the largest first"
    one = client.get("/buckets/one", params={"bucket": "photos"}).text
    assert "5.9 KiB" in one
    assert "3 current objects with 5.9 KiB" in one
    empty = client.get("/buckets/one", params={"bucket": "nowhere"})
    assert empty.status_code == 200
    assert "there is no bucket &#39;nowhere&#39;" in empty.text
    assert "it had no object that takes space" in empty.text
    assert client.get("/buckets/one").status_code == 400
    assert client.get("/buckets/one", params={"bucket": "b" * 300}).status_code == 400


def test_usage_and_quotas_are_shown_with_their_time(bench: Bench, system: System, client: Client) -> None:
    metadata = system.metadata
    assert "Usage is not counted in this store" in client.get("/buckets").text
    metadata.count_usage()
    for bucket, quota in (("full", Quota(hard_bytes=2000)), ("<i>", Quota(soft_objects=4)), ("waits", Quota(1, 2))):
        metadata.create_bucket(bucket, "alice", CannedAcl.PRIVATE, 1)
        metadata.set_bucket_document(bucket, DocumentKind.QUOTA, encode(quota), 1)
        assert metadata.meter_bucket(bucket, 1)
        bench.put(system, "x", bytes(1900), bucket)
    for bucket in ("full", "<i>"):
        metadata.settle_usage(bucket, 1, Sums(), 1)
    metadata.add_access_key(
        AccessKey(account_record("alice"), "alice", encode(Quota(hard_objects=30)), KeyState.DISABLED, 1)
    )
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        client = Client(create_app(system, panels, None, bytes))
        page = client.get("/buckets").text
        used = page.partition("Quotas used most")[2].partition("</table>")[0]
        assert "Read at <time" in used
        assert [used.index(text) for text in ("full", "&lt;i&gt;", "alice")] == sorted(
            used.index(text) for text in ("full", "&lt;i&gt;", "alice")
        )
        assert "<strong>95" in used
        assert "4 (soft)" in used
        assert "waits" not in used
        one = client.get("/buckets/one", params={"bucket": "waits"}).text
        assert "being counted" in one
        assert "account <bdi" in one
        bench.put(system, "x", b"x", "plain")
        plain = client.get("/buckets/one", params={"bucket": "plain"}).text
        assert "Usage is not counted in this store" in plain


def test_estimates_have_errors_and_a_bucket_without_a_sample_says_so(
    bench: Bench, system: System, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_sample, "RANGE_IDS", 1)
    monkeypatch.setattr(bucket_sample, "RANGES_MAX", 4)
    monkeypatch.setattr(buckets, "COUNTED_MAX", 2)
    for number in range(12):
        bench.put(system, f"n{number}", bench.data(1000 * (number + 1)), "large")
    bench.put(system, "a", b"x", "rare")
    seed = next(seed for seed in range(99) if 12 not in random.Random(seed).sample(range(13), 4))
    rng = random.Random(seed)
    monkeypatch.setattr("nos_ec.console.app.random.Random", lambda _: rng)
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        client = Client(create_app(system, panels, None, bytes))
        page = client.get("/buckets").text
        assert "4 of 13 ranges of object ids, 30.77 % of the store" in page
        assert "&plusmn;" in page
        assert "not in the sample: its size is not known" in page
        one = client.get("/buckets/one", params={"bucket": "large"}).text
        assert "The sample has 4 rows of it, in 4 ranges. That is few" in one
        assert "more than 2 current objects" in one


def test_documents_are_formatted_text_and_access_keys_are_nowhere(bench: Bench, system: System, client: Client) -> None:
    own(system, "b")
    bench.put(system, "a", b"x")
    for path in ("/buckets", "/buckets/one?bucket=b"):
        page = client.get(path).text
        assert "AKIAHIDDENKEY" not in page
        assert "hidden" not in page.replace('type="hidden"', "")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in page
    for text in (
        "alice",
        "bob",
        "read, list",
        "&#34;days&#34;: 30",
        "    &lt;AllowedMethod&gt;GET&lt;/AllowedMethod&gt;",
    ):
        assert text in page
    assert ">enabled\n<" in page.lower()


@pytest.mark.parametrize(
    ("kind", "body", "lines"),
    [
        (DocumentKind.VERSIONING, b"Enabled", ["Enabled"]),
        (DocumentKind.POLICY, b'{"a":[1]}', ["{", '  "a": [', "    1", "  ]", "}"]),
        (DocumentKind.POLICY, b'{"a":', ['{"a":']),
        (DocumentKind.POLICY, b"\xff\x1b[31m", ["\\xff\\x1b[31m"]),
        (DocumentKind.TAGS, b"<?xml?><T><A>1</A><B/>\n <C><D>x</D></C></T>", [
            "<?xml?>", "<T>", "  <A>1</A>", "  <B/>", "  <C>", "    <D>x</D>", "  </C>", "</T>"
        ]),
        (DocumentKind.TAGS, b"<a></b></c>", ["<a></b>", "</c>"]),
        (DocumentKind.LIFECYCLE, b"junk", ["lifecycle rules that cannot be read"]),
    ],
)  # fmt: skip
def test_documents_that_cannot_be_parsed_are_shown_as_they_are(
    kind: DocumentKind, body: bytes, lines: list[str]
) -> None:
    assert document_lines(kind, body) == lines


def test_the_list_comes_in_pages_without_the_buckets_of_the_store(
    bench: Bench, system: System, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "PAGE_ROWS", 2)
    for name in ("a", "c", "d"):
        bench.put(system, "n", b"x", name)
    first = bucket_page(system.metadata, "")
    assert (first.names, first.after) == (["a", "c"], "c")
    page = client.get("/buckets").text
    link = page.partition('href="/buckets?')[2].partition('"')[0]
    assert parse_qs(link) == {"after": ["c"]}
    assert bucket_page(system.metadata, "c").names == ["d"]
    monkeypatch.setattr(buckets, "hidden_prefix", lambda name: name if name == "c" else None)
    assert bucket_page(system.metadata, "").names == ["a"]


def test_a_bucket_shows_how_long_its_objects_live(bench: Bench, system: System, client: Client) -> None:
    bench.put(system, "a", b"x")
    assert "No object of it has been observed yet" in client.get("/buckets/one?bucket=b").text
    counts = Counts()
    counts.deaths[3], counts.exposure_days[3] = 40, 100
    now_ms = system.clock.now_ms()
    system.metadata.count_survey({"b": counts}, None, now_ms)
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        page = Client(create_app(system, panels, None, bytes)).get("/buckets/one?bucket=b").text
    assert "from 40 <" in page
    assert page.count("<polyline") == 2


def test_pages_read_as_many_statements_however_many_objects_there_are(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_sample, "RANGE_IDS", 4)
    monkeypatch.setattr(bucket_sample, "RANGES_MAX", 3)
    monkeypatch.setattr(buckets, "COUNTED_MAX", 10)
    counted = []
    for count in (20, 200):
        bench.put_some(system, count)
        with (
            closing(Panels(system.clock, WAIT_S_MAX)) as panels,
            caught(system.metadata) as statements,  # type: ignore[arg-type]
        ):
            client = Client(create_app(system, panels, None, bytes))
            assert client.get("/buckets").status_code == 200
            assert client.get("/buckets/one?bucket=bucket-0").status_code == 200
        counted.append(sum(text.startswith("SELECT") for text, _ in statements))
    assert counted[0] == counted[1]


def test_buckets_in_a_browser(bench: Bench, system: System) -> None:
    bench.put_some(system, 20)
    own(system, "b")
    names = [name.replace("/", "|")[:255] for name in HOSTILE_NAMES]
    for name in names:
        bench.put(system, "n", b"x", name)
    system.metadata.count_survey({"b": Counts([3.0] * 17, [9.0] * 17)}, None, system.clock.now_ms())
    with running_browser() as browser, serving(system) as url:
        for scheme in ("light", "dark"):
            with visiting(browser, url, color_scheme=scheme, viewport={"width": 360, "height": 640}) as visit:
                text = visit.go("/buckets")
                assert visit.severe_findings() == []
                assert not set("\u202e\u2066\u200f\x1b") & set(text)
                visit.page.get_by_label("Bucket").fill(names[0])
                visit.page.get_by_role("button", name="Show").click()
                expect(visit.page.get_by_role("heading", level=1)).to_have_text(names[0])
                assert visit.severe_findings() == []
                visit.go("/buckets/one?bucket=b")
                expect(visit.page.locator("pre").first).to_be_visible()
                assert visit.severe_findings() == []
                width = visit.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
                assert width <= 0
