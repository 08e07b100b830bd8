"""The page Simulator: its forms, and the page of one simulation, whose address works while the console runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from nos_ec.bench.gc.workloads import GC_WORKLOADS
from nos_ec.composition.wiring import System
from nos_ec.console.access.login import form_fields, require_csrf
from nos_ec.console.simulator.child import NICE, Order
from nos_ec.console.simulator.jobs import Simulation, Simulations, Work
from nos_ec.console.view import View
from nos_ec.core.errors import InvalidInput, NotFound
from nos_ec.core.ids import BUCKET_BYTES_MAX
from nos_ec.engine.figures.bucket_sample import bucket_of, random_ranges
from nos_ec.engine.texts import count_text, printable
from nos_ec.ports.metadata import Survival

UPLOAD_BYTES_MAX = 16 << 20
LINES_MAX = 1_000_000
FORM_BYTES = 64 << 10
"""Room for the other fields of the form, and its boundaries."""
DRAINED_BYTES_MAX = 256 << 20
"""A browser shows the refusal of a file only once it has sent the file, so the rest is read and thrown away."""
UPLOAD_S_MAX = 120.0
BUCKET_RANGES_MAX = 200
BUCKET_RANGE_IDS = 2_048
BUCKET_SIZES_MAX = 100_000
POLICIES = ("best", "nos")
WINDOWS = (100, 1_000, 10_000)
TARGETS = (1.1, 1.2, 1.3, 1.5)
GC_BLOCKS = 200
WORKLOAD_TEXTS = {
    "A": "all objects die at one rate",
    "B": "buckets with different lifetimes",
    "C": "the older an object, the longer it lives",
    "D": "whole folders are deleted at once",
    "D-mixed": "as D, among other objects",
    "E": "a growing store",
}
TOO_LARGE = f"The file is larger than {UPLOAD_BYTES_MAX >> 20} MiB. Give a sample of its lines."
TOO_MANY = f"The file has more than {LINES_MAX:,} lines. Give a sample of them."
WIDTH, HEIGHT = 640, 220
"""The units of a drawing, without its axes."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing: lines of (class, name, points in the form of SVG), and its marks (place, text) on both axes."""

    lines: Sequence[tuple[str, str, str]]
    across: Sequence[tuple[float, str]]
    up: Sequence[tuple[float, str]]


def packing_chart(found: Sequence[dict[str, Any]]) -> Chart | None:
    """Return the utilisation by window of each policy, with the bound of the sizes that policy "best" packed; None
    without two windows of a policy."""
    if len([one for one in found if one["policy"] == POLICIES[0]]) < 2:
        return None
    least = min(one["utilisation"] for one in found)
    most = max(one["bound"] for one in found)

    def y(share: float) -> float:
        return round(HEIGHT * (most - share) / (most - least), 1) if most > least else 0.0

    across = {window: round(WIDTH * at / (len(WINDOWS) - 1), 1) for at, window in enumerate(WINDOWS)}
    lines = []
    for policy in POLICIES:
        of_policy = [one for one in found if one["policy"] == policy]
        points = " ".join(f"{across[one['window']]},{y(one['utilisation'])}" for one in of_policy)
        lines.append((f"policy-{policy}", f"policy {policy}", points))
    bounds = [one for one in found if one["policy"] == POLICIES[0]]
    lines.append(("bound", "the bound", " ".join(f"{across[one['window']]},{y(one['bound'])}" for one in bounds)))
    marks = [(x, f"{window:,}") for window, x in across.items()]
    return Chart(lines, marks, [(y(share), f"{100 * share:.2f} %") for share in (most, least)])


def gc_chart(found: Sequence[dict[str, Any]]) -> Chart | None:
    """Return the write amplification by space amplification, with the bound; None without two targets."""
    if len(found) < 2:
        return None
    spaces = [one["space_amplification"] for one in found]
    most = max(one["write_amplification"] for one in found)
    first, last = min(spaces), max(spaces)

    def at(space: float, writes: float) -> str:
        x = WIDTH * (space - first) / (last - first) if last > first else 0
        return f"{x:.1f},{HEIGHT * (1 - writes / most):.1f}"

    lines = [
        ("policy-best", "GC", " ".join(at(one["space_amplification"], one["write_amplification"]) for one in found)),
        (
            "bound",
            "the bound",
            " ".join(at(one["space_amplification"], one["bound"]) for one in found if one["bound"] is not None),
        ),
    ]
    return Chart(lines, [(0.0, f"{first:.3f}"), (WIDTH, f"{last:.3f}")], [(0.0, f"{most:.2f}"), (HEIGHT, "0")])


def command_lines(shown: Simulation) -> list[str]:
    """Return the commands that compute the same. The names of files and buckets are not in them: they could be
    anything."""
    packing = [
        f"nos-ec simulate packing --sizes sizes.txt --policy {policy} --window {window}"
        for policy in POLICIES
        for window in WINDOWS
    ]
    workload = shown.workload
    gc = [
        f"nos-ec simulate gc --workload {workload} --space-amp {target} --blocks {GC_BLOCKS}"
        for target in (TARGETS if workload else ())
    ]
    return packing + gc


def bucket_sizes(metadata: Survival, bucket: str, rng: random.Random) -> Callable[[Work], bytes]:
    """Return a function that reads sizes of objects and parts of a bucket at random places, one a line. It raises
    NotFound if it finds none, and Transient."""

    def read(work: Work) -> bytes:
        ranges, of_store = random_ranges(metadata.last_object_id(), BUCKET_RANGE_IDS, BUCKET_RANGES_MAX, rng)
        rng.shuffle(ranges)  # so that those that are left out at the end are random, too
        sizes: list[int] = []
        done = 0
        for first, last in ranges:
            if work.cancelled.is_set() or len(sizes) >= BUCKET_SIZES_MAX:
                break
            sizes += [row.size for row in metadata.living_between(first, last) if bucket_of(row) == bucket]
            done += 1
            work.show(step=f"{count_text(len(sizes), 'size')} in {done} of {count_text(len(ranges), 'range')}")
        if work.cancelled.is_set():
            return b""
        if not sizes:
            raise NotFound(
                f"no object of bucket {bucket!r} that takes space was found in {done:,} of"
                f" {count_text(of_store, 'range')} of object ids; export its sizes and upload them"
            )
        share = done / of_store if of_store else 1
        note = f"{count_text(len(sizes), 'object or part', 'objects and parts')}, found in {done:,} of"
        note += f" {count_text(of_store, 'range')} of object ids:"
        note += " all of the bucket" if done == of_store else f" about {100 * share:.2g} % of the bucket"
        data = "".join(f"{size}\n" for size in sizes).encode()
        work.show(note=note, sizes=data)
        return data

    return read


def routes(system: System, simulations: Simulations, view: View, rng: random.Random) -> list[Route]:
    """Return the routes. `rng` chooses samples of buckets; only one simulation at a time uses it."""

    def to(simulation_id: str) -> Response:
        return RedirectResponse(f"{view.base}/simulator/{simulation_id}", HTTPStatus.SEE_OTHER)

    def order(workload: str) -> Order:
        geometry = system.geometry
        return Order(
            (geometry.k, geometry.m, geometry.chunk_size, geometry.stripes_per_block, geometry.stripes_per_group_max),
            system.settings.consumer.model_dump(mode="json"),
            [(policy, window) for policy in POLICIES for window in WINDOWS],
            workload or GC_WORKLOADS[0],
            TARGETS if workload else (),
            GC_BLOCKS,
            0,
            NICE,
        )

    def form(request: Request) -> Response:
        known = simulations.all()
        return view.page(
            request,
            "simulator.html",
            "Simulator",
            bucket=request.query_params.get("bucket", "")[:BUCKET_BYTES_MAX],
            known=known,
            running=next((one for one in known if not one.is_over), None),
            workloads=WORKLOAD_TEXTS,
            bytes_max=UPLOAD_BYTES_MAX,
            lines_max=LINES_MAX,
        )

    def one(request: Request) -> Response:
        shown = simulations.find(request.path_params["id"])
        return view.page(
            request,
            "simulation.html",
            "Simulation",
            shown=shown,
            packing=packing_chart(shown.packing),
            gc=gc_chart(shown.gc),
            commands=command_lines(shown),
            workloads=WORKLOAD_TEXTS,
        )

    def sizes(request: Request) -> Response:
        shown = simulations.find(request.path_params["id"])
        if shown.sizes is None:
            raise NotFound("the console keeps no list that was uploaded, only those that it read itself")
        headers = {"Content-Disposition": 'attachment; filename="sizes.txt"'}
        return Response(shown.sizes, media_type="text/plain; charset=utf-8", headers=headers)

    async def cancel(request: Request) -> Response:
        require_csrf(request, (await form_fields(request)).get("csrf", ""))
        simulations.cancel(request.path_params["id"])
        return to(request.path_params["id"])

    async def of_bucket(request: Request) -> Response:
        fields = await form_fields(request)
        require_csrf(request, fields.get("csrf", ""))
        bucket, workload = fields.get("bucket", ""), chosen_workload(fields.get("workload", ""))
        if not bucket or len(bucket.encode(errors="replace")) > BUCKET_BYTES_MAX:
            raise InvalidInput(f"give the name of a bucket, of at most {BUCKET_BYTES_MAX} bytes")
        work = simulations.reserve(f"bucket {printable(bucket)}", workload)
        simulations.start(work, order(workload), bucket_sizes(system.metadata, bucket, rng))
        return to(work.shown.id)

    async def of_upload(request: Request) -> Response:
        work = simulations.reserve("a list that was uploaded", "")
        try:
            fields, data = await read_upload(request, work)
            require_csrf(request, fields.get("csrf", ""))
            workload = chosen_workload(fields.get("workload", ""))
        except BaseException:
            simulations.drop(work)
            raise
        work.show(workload=workload)
        simulations.start(work, order(workload), lambda _: data)
        return to(work.shown.id)

    return [
        Route("/simulator", form),
        Route("/simulator/bucket", of_bucket, methods=["POST"]),
        Route("/simulator/upload", of_upload, methods=["POST"]),
        Route("/simulator/{id}", one),
        Route("/simulator/{id}/sizes.txt", sizes),
        Route("/simulator/{id}/cancel", cancel, methods=["POST"]),
    ]


def chosen_workload(given: str) -> str:
    """Return the workload of GC that a form asks for, "" for none. Raises InvalidInput."""
    if given and given not in GC_WORKLOADS:
        raise InvalidInput(f"workload {given!r} is unknown; give one of {', '.join(GC_WORKLOADS)}")
    return given


async def read_upload(request: Request, work: Work) -> tuple[dict[str, str], bytes]:
    """Return the fields of a form and the content of its file, which is limited while it is read, and stays in memory.
    Raises HTTPException, as soon as the simulation is cancelled too."""
    parser = MultiPartParser(request.headers, _limited(request), max_files=1, max_fields=10, max_part_size=8192)
    parser.spool_max_size = UPLOAD_BYTES_MAX + FORM_BYTES  # so that it does not write a file
    try:
        async with asyncio.timeout(UPLOAD_S_MAX) as limit:
            with _ends_when_cancelled(work, limit):
                form = await parser.parse()
                file = form.get("sizes")
                data = await file.read() if isinstance(file, UploadFile) else b""
                await form.close()
    except (TimeoutError, ClientDisconnect) as error:
        if work.cancelled.is_set():
            raise HTTPException(HTTPStatus.CONFLICT, "The simulation was cancelled.") from error
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, "The file did not arrive in time.") from error
    except (MultiPartException, KeyError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "The form cannot be read.") from error
    if len(data) > UPLOAD_BYTES_MAX:
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LARGE)
    return {name: value for name, value in form.items() if isinstance(value, str)}, data


@contextmanager
def _ends_when_cancelled(work: Work, limit: asyncio.Timeout) -> Iterator[None]:
    """Let `limit` end as soon as a simulation is cancelled, by whichever thread."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        if work.on_cancel is not None and not limit.expired():
            limit.reschedule(loop.time())

    def end_soon() -> None:
        with suppress(RuntimeError):  # the loop has ended, and the upload with it
            loop.call_soon_threadsafe(end)

    work.on_cancel = end_soon
    try:
        if work.cancelled.is_set():
            end()
        yield
    finally:
        work.on_cancel = None


async def _limited(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield the body of a form with a file. Raises HTTPException if it is too long, once it has been sent."""
    size, lines, refusal = 0, 0, ""
    async for part in request.stream():
        size += len(part)
        lines += part.count(b"\n")
        if size > UPLOAD_BYTES_MAX + FORM_BYTES:
            refusal = TOO_LARGE
        elif lines > LINES_MAX + 100:  # more for the lines of the form itself
            refusal = TOO_MANY
        if size > DRAINED_BYTES_MAX:
            break
        if not refusal:
            yield part
    if refusal:
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, refusal)
