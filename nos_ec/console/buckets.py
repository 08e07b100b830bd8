"""The pages of buckets: what each holds, estimated from a sample of rows, and one bucket with its documents.

No index counts by bucket, so sizes come from rows at random places (engine/figures/bucket_sample.py), read once for all
sessions. A bucket of few objects is counted. Access keys are not read.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import log
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.explaining import object_explainer
from nos_ec.composition.wiring import System
from nos_ec.console.cells.moves import read_move
from nos_ec.console.flow import OLDEST_ROWS, oldest_waiting
from nos_ec.console.panels import Panel, Panels
from nos_ec.console.view import View
from nos_ec.core.errors import Corrupt, InvalidInput, NotFound
from nos_ec.core.expiry import decode_rules
from nos_ec.core.ids import BUCKET_BYTES_MAX
from nos_ec.core.packing.lifetimes import OTHERS, DeathRates
from nos_ec.core.tails import hidden_prefix
from nos_ec.engine.expiry.survival import table_of
from nos_ec.engine.explain.objects import ObjectExplanation
from nos_ec.engine.figures.bucket_sample import NEW_DAYS, BucketFigures, sample_buckets
from nos_ec.engine.figures.quota_use import NEAR, QuotaUse, account_use, bucket_use, nearest_to_quota
from nos_ec.engine.texts import printable
from nos_ec.ports.metadata import BucketRow, DocumentKind, Metadata, MoveRow, Rights, SurvivalRow

SAMPLE_MS = 600_000
"""How often the sample is read, at most. It reads some 25,000 rows."""
PAGE_ROWS = 200
LARGEST_SHOWN = 20
QUOTAS_SHOWN = 20
QUOTAS_MS = 60_000
"""How often quotas are read, at most: a row for each metered bucket."""
COUNTED_MAX = 1_000
"""A bucket with at most this many current objects is counted."""
BUDGET_MS = 1_000
ROUGH_RANGES = 20
"""A bucket that was found in fewer ranges than this has a rough error, too."""
AGES_DAYS = tuple(2.0**power for power in range(-5, 11))
"""The ages of the drawn points: 45 minutes to 3 years, each twice the one before."""
AGE_MARKS = ((1 / 24, "an hour"), (1.0, "a day"), (7.0, "a week"), (30.0, "30 days"), (365.0, "a year"))
WIDTH, HEIGHT = 640, 220
"""The units of the drawing, without its axes."""
_INDENT_MAX = 20
_XML = re.compile("<[^>]*>|[^<]+")


@dataclass(frozen=True, slots=True)
class BucketPage:
    """A page of the names of buckets. `after` is the query parameter of the next page; None at the end."""

    names: Sequence[str]
    after: str | None


def bucket_page(metadata: Metadata, after: str) -> BucketPage:
    """Return the buckets after this name that hold an object, without those of the store itself. Raises Transient."""
    names = metadata.list_buckets(after, PAGE_ROWS)
    shown = [name for name in names if hidden_prefix(name) is None]
    return BucketPage(shown, names[-1] if len(names) == PAGE_ROWS else None)


def largest(buckets: Mapping[str, BucketFigures]) -> list[str]:
    """Return the buckets of a sample with the most bytes, without those of the store itself."""
    users = [name for name in buckets if hidden_prefix(name) is None]
    return sorted(users, key=lambda name: (-buckets[name].size_bytes.value, name))[:LARGEST_SHOWN]


@dataclass(frozen=True, slots=True)
class Counted:
    """The first COUNTED_MAX current objects of a bucket. `is_whole` is True if the bucket has no more."""

    objects: int
    size_bytes: int
    is_whole: bool


def count_objects(metadata: Metadata, bucket: str) -> Counted:
    """Return what the first page of a bucket's listing holds. Raises Transient."""
    page = metadata.list_summaries(bucket, "", "", "", COUNTED_MAX, BUDGET_MS)
    return Counted(len(page.objects), sum(one.size for one in page.objects), page.next_after is None)


@dataclass(frozen=True, slots=True)
class BucketWaiting:
    """The objects of a bucket among the `examined` ones that wait longest to be packed. If `is_all`, no others wait.
    `oldest` explains the one that has waited longest; None if there is none, or if it was deleted meanwhile."""

    objects: int
    size_bytes: int
    examined: int
    is_all: bool
    oldest: ObjectExplanation | None


def find_waiting(system: System, bucket: str) -> BucketWaiting:
    """Return what waits of a bucket, and why. Raises Transient."""
    rows, objects = oldest_waiting(system.metadata)
    its = [row for row in rows if row.object_id in objects and objects[row.object_id].key.bucket == bucket]
    explained = None
    if its:
        with suppress(NotFound):
            explained = object_explainer(system).explain(objects[its[0].object_id].key)
    size_bytes = sum(row.size for row in its)
    return BucketWaiting(len(its), size_bytes, len(rows), len(rows) < OLDEST_ROWS, explained)


@dataclass(frozen=True, slots=True)
class Document:
    """A document of a bucket as lines of text."""

    kind: DocumentKind
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Owned:
    """The row of a bucket, the rights of accounts that do not own it, and its documents."""

    row: BucketRow
    grants: Sequence[tuple[str, str]]
    documents: Sequence[Document]


def read_owned(metadata: Metadata, bucket: str) -> Owned:
    """Return what owners have set. Raises NotFound, Transient."""
    row = metadata.bucket(bucket)
    if row is None:
        raise NotFound(f"there is no bucket {bucket!r}; its name may be misspelt")
    grants = [(account, rights_text(rights)) for account, rights in sorted(metadata.grants(bucket).items())]
    found = metadata.bucket_documents(bucket, list(DocumentKind))
    documents = [Document(kind, document_lines(kind, found[kind])) for kind in DocumentKind if kind in found]
    return Owned(row, grants, documents)


def read_uses(metadata: Metadata, bucket: str) -> Sequence[QuotaUse]:
    """Return what a bucket holds if it is metered, and what the buckets of its owner hold if the owner has a quota.
    Raises Transient."""
    found = []
    with suppress(NotFound):
        found.append(bucket_use(metadata, bucket))
    row = metadata.bucket(bucket)
    if row is not None and (use := account_use(metadata, row.owner)) is not None:
        found.append(use)
    return found


def rights_text(rights: Rights) -> str:
    """Return the names of rights: 'read, list'."""
    return ", ".join(str(one.name).lower().replace("_", " ") for one in rights)


def document_lines(kind: DocumentKind, body: bytes) -> list[str]:
    """Return a document as indented lines, in which control characters are shown. One that cannot be parsed is shown as
    it is."""
    text = body.decode(errors="backslashreplace")
    if kind is DocumentKind.LIFECYCLE:
        try:
            rules = [{name: value for name, value in asdict(rule).items() if value} for rule in decode_rules(body)]
        except Corrupt as error:
            return [str(error)]
        text = json.dumps(rules, indent=2, ensure_ascii=False)
    elif text.lstrip().startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    elif text.lstrip().startswith("<"):
        text = "\n".join(_xml_lines(text))
    return [printable(line) for line in text.split("\n")]


def _xml_lines(text: str) -> list[str]:
    """Return a line for each tag and each text between tags; an element that holds only text is one line."""
    lines: list[str] = []
    depth, opened = 0, False
    for token in (found.strip() for found in _XML.findall(text)):
        if not token:
            continue
        closes = token.startswith("</")
        depth -= closes
        if opened and (closes or not token.startswith("<")):
            lines[-1] += token
        else:
            lines.append("  " * max(0, min(depth, _INDENT_MAX)) + token)
        opens = token.startswith("<") and not closes and not token.endswith("/>") and token[1:2] not in ("?", "!")
        depth += opens
        opened = opens or (opened and not closes)
    return lines


@dataclass(frozen=True, slots=True)
class Lives:
    """The survival of a bucket. `points` and `pool_points` are the curves of the bucket and of all buckets together in
    the form of SVG, `marks` the places of AGE_MARKS, and `shares` the shares of the bucket's objects that reach them.
    `deaths` and `object_days` are what was observed of a sample of its objects."""

    points: str
    pool_points: str
    marks: Sequence[tuple[float, str]]
    shares: Sequence[float]
    deaths: float
    object_days: float


@dataclass(frozen=True, slots=True)
class Survival:
    """The survival table at one moment. `observed` has the deaths and object-days by bucket."""

    rates: DeathRates
    observed: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, rows: Sequence[SurvivalRow], now_ms: int) -> Survival:
        """Return the table of these rows at `now_ms`."""
        table = table_of(rows, now_ms)
        observed = {
            bucket: (sum(counts.deaths), sum(counts.exposure_days))
            for bucket, counts in table.rows().items()
            if bucket != OTHERS
        }
        return cls(table.death_rates(), observed)

    def lives(self, bucket: str) -> Lives | None:
        """Return what is known about the lifetimes in a bucket; None if none of its objects was observed."""
        if bucket not in self.observed:
            return None
        return Lives(
            self._points(bucket),
            self._points(OTHERS),
            [(_x(days), text) for days, text in AGE_MARKS],
            [self.rates.survival(bucket, days) for days, _ in AGE_MARKS],
            *self.observed[bucket],
        )

    def _points(self, bucket: str) -> str:
        return " ".join(f"{_x(days)},{HEIGHT * (1 - self.rates.survival(bucket, days)):.1f}" for days in AGES_DAYS)


def _x(days: float) -> float:
    """Return the place of an age, on a logarithmic scale."""
    first, last = AGES_DAYS[0], AGES_DAYS[-1]
    return round(WIDTH * log(days / first) / log(last / first), 1)


def bucket_name(request: Request, field: str) -> str:
    """Return the name of a bucket in a field of the address; "" without one. Raises InvalidInput."""
    name = request.query_params.get(field, "")
    if len(name.encode(errors="replace")) > BUCKET_BYTES_MAX:
        raise InvalidInput(f"{field} is longer than {BUCKET_BYTES_MAX} bytes of UTF-8")
    return name


def routes(system: System, panels: Panels, view: View, rng: random.Random) -> list[Route]:
    """Return the routes of both pages. `rng` chooses the sample; only one thread at a time uses it."""
    metadata, clock, small_bytes = system.metadata, system.clock, system.geometry.chunk_size
    sample = panels.source(lambda: sample_buckets(metadata, small_bytes, clock.now_ms(), rng), SAMPLE_MS)
    survival = panels.source(lambda: Survival.of(metadata.survival(), clock.now_ms()), FIGURES_MS)
    shown: dict[str, Any] = {"new_days": NEW_DAYS, "small_bytes": small_bytes, "rough_ranges": ROUGH_RANGES}

    nearest = panels.source(lambda: nearest_to_quota(metadata, QUOTAS_SHOWN), QUOTAS_MS)
    shown["is_counted"] = system.settings.store.count_usage
    in_cells = system.settings.cell is not None

    def read_places(names: Sequence[str]) -> Mapping[str, MoveRow]:
        return {name: row for name in names if (row := read_move(metadata, name)) is not None}

    def places_of(names: Sequence[str]) -> Panel[Mapping[str, MoveRow]]:
        """The buckets of these that are being moved, or were moved away. In a store without cells, none are."""
        if not in_cells:
            return Panel({})
        return panels.read(panels.once(("places", *names), lambda: read_places(names)))

    def buckets(request: Request) -> Response:
        after = bucket_name(request, "after")
        listed = panels.once(("buckets", after), lambda: bucket_page(metadata, after))
        panels.wait_for(sample, listed, nearest)
        return view.page(
            request,
            "buckets.html",
            "Buckets",
            sample=panels.shown(sample),
            listed=panels.shown(listed),
            nearest=panels.shown(nearest),
            near=NEAR,
            largest=largest,
            places=places_of([] if sample.last.value is None else largest(sample.last.value.buckets)),
            next_query=lambda name: urlencode({"after": name}),
            one_query=lambda name: urlencode({"bucket": name}),
            **shown,
        )

    def one(request: Request) -> Response:
        name = bucket_name(request, "bucket")
        if not name:
            raise InvalidInput("give the name of a bucket")
        owned = panels.once(("bucket", name), lambda: read_owned(metadata, name))
        counted = panels.once(("counted", name), lambda: count_objects(metadata, name))
        uses = panels.once(("uses", name), lambda: read_uses(metadata, name))
        waiting = panels.once(("waiting", name), lambda: find_waiting(system, name))
        panels.wait_for(sample, survival, owned, counted, waiting, uses)
        place = places_of([name])
        return view.page(
            request,
            "bucket.html",
            name,
            bucket=name,
            place=place,
            here=system.settings.cell,
            query=urlencode({"bucket": name}),
            sample=panels.shown(sample),
            counted=panels.shown(counted),
            counted_max=COUNTED_MAX,
            waiting=panels.shown(waiting),
            uses=panels.shown(uses),
            near=NEAR,
            survival=panels.shown(survival),
            owned=panels.shown(owned),
            age_marks=AGE_MARKS,
            streams=system.settings.gc.streams,
            **shown,
        )

    return [Route("/buckets", buckets), Route("/buckets/one", one)]
