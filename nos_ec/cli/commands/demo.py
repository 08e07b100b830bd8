"""The command demo."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.panel import Panel
from rich.table import Table

from nos_ec.cli.commands.api import serve_console
from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import emit, err, figure_text, out, ticking
from nos_ec.cli.terminal.values import Seed, size_option
from nos_ec.core.errors import Corrupt, Transient
from nos_ec.demo.run import REPLICAS, Demo, DemoOptions, Report
from nos_ec.demo.s3 import BUCKET, Access
from nos_ec.engine.texts import count_text, size_text
from nos_ec.settings import load_settings

CONSUMERS = 3
"""Consumer processes that share the work if the message log is Kafka."""


def demo(
    ctx: typer.Context,
    source: Annotated[Path, typer.Option(help="Folder whose files are stored.")] = Path("/usr/share"),
    limit_bytes: Annotated[
        int, typer.Option(parser=size_option, metavar="SIZE", help="Store at most this many bytes.")
    ] = 512 << 20,
    limit_objects: Annotated[int, typer.Option(min=1, help="Store at most this many files.")] = 1_000_000,
    delete_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the objects to delete before GC.")
    ] = 0.85,
    sample_objects: Annotated[int, typer.Option(min=1, help="Number of objects to read while shards are lost.")] = 2000,
    seed: Seed = 1,
    root: Annotated[
        Path | None, typer.Option(help="Empty folder for the demo's store. Default: a temporary folder.")
    ] = None,
    consumers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of consumer processes. Default: 3 on Kafka, else 1 (the demo process itself)."
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the store afterwards.")] = False,
    s3: Annotated[
        bool, typer.Option("--s3", help="Store and read through an S3 gateway as well. Needs botocore.")
    ] = False,
    show: Annotated[
        bool,
        typer.Option("--console", help="Keep the store, and show it in a browser until Ctrl-C. Needs nos-ec[console]."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take a real folder through the whole pipeline. Shows how much space it saves. Exits with 6 if a single byte
    differs, and with 7 if a read failed."""
    settings, keep = context(ctx).settings(), keep or show
    with ticking() as tick:
        place = root or Path(tempfile.mkdtemp(prefix="nos-ec-demo-"))
        count = consumers or (CONSUMERS if settings.log.backend == "kafka" else 1)
        options = DemoOptions(
            source, limit_bytes, limit_objects, delete_share, sample_objects, seed, place, keep, count, s3
        )
        run = Demo(settings, options, perf_counter, tick)
        try:
            report = run.run()
        finally:
            if root is None and not keep:
                shutil.rmtree(place, ignore_errors=True)
    data = {
        "source": report.source,
        "objects": report.objects,
        "bytes": report.bytes,
        "skipped_files": report.skipped_files,
        **report.figures,
        "verify": asdict(report.verify),
        "seconds": report.seconds,
    }
    emit(data, as_json, lambda: _print(report))
    if show:
        serve_console(load_settings(run.config_file, {}), port=0, anonymous=True, as_json=as_json)
    command = f"{_program()} --config {run.config_file}"
    if keep:
        err.print(
            f"the store was kept; look at it with: {command} status, or in a browser with: {command} console"
            " --anonymous",
            markup=False,
            soft_wrap=True,
        )
    elif not as_json:
        err.print("to look at such a store in a browser: --console (make demo DEMO_ARGS=--console)", markup=False)
    if keep and run.access is not None:
        err.print(_s3_text(run, run.access), markup=False, highlight=False, soft_wrap=True)
    if report.verify.mismatches:
        differ = count_text(report.verify.mismatches, "read differs", "reads differ")
        raise Corrupt(f"{differ}; the first: {report.verify.first_mismatch}")
    if report.verify.unanswered:
        failed = count_text(report.verify.unanswered, "read")
        raise Transient(f"{failed} failed; the first: {report.verify.first_unanswered}; all others match the files")


def _program() -> str:
    """Return the words that start this program: its name, if that is on the PATH."""
    return "nos-ec" if shutil.which("nos-ec") else f"{sys.executable} -m nos_ec"


def _s3_text(run: Demo, access: Access) -> str:
    """Return instructions for using the kept store with S3 clients."""
    return "\n".join(
        [
            "for S3 clients, serve it:",
            f"  {_program()} --config {run.config_file} s3 serve",
            "and in another shell:",
            f"  export AWS_ACCESS_KEY_ID={access.access_key}",
            f"  export AWS_SECRET_ACCESS_KEY={access.secret}",
            "  export AWS_DEFAULT_REGION=us-east-1",
            f"  export AWS_ENDPOINT_URL=http://127.0.0.1:{run.s3_port}",
            f"  aws s3 ls s3://{BUCKET}/",
        ]
    )


def _print(report: Report) -> None:
    figures, verify = report.figures, report.verify
    gc, small, lost = figures["gc"], figures["small_get"], figures["lost_shards"]
    out.print(
        Panel.fit(
            f"[bold]{count_text(report.objects, 'object')}[/], [bold]{size_text(report.bytes)}[/] from {report.source}"
        )
    )
    space = Table(title="Space", title_justify="left")
    for column in ("", "nos_ec", "compare"):
        space.add_column(column, justify="left" if not column else "right")
    raw = figure_text(figures["raw_bytes_per_user_byte"], ".3f")
    space.add_row("raw bytes per user byte", f"[bold green]{raw}[/]", f"{REPLICAS}.000  three replicas")
    space.add_row(
        "stripe utilisation",
        f"[bold green]{figure_text(figures['utilisation'], '.2%')}[/]",
        f"{figure_text(figures['bound'], '.2%')}  proven bound",
    )
    space.add_row("", "", f"{figure_text(figures['utilisation_nos_policy'], '.2%')}  published policy, same sizes")
    out.print(space)
    reads = Table(title="Reads", title_justify="left", show_header=False)
    reads.add_row("small objects inside one chunk", figure_text(figures["single_chunk_ratio"], ".2%"))
    reads.add_row("shard reads per small GET", f"[bold green]{figure_text(small['shard_reads_mean'], '.3f')}[/]")
    reads.add_row("shard bytes per user byte, small GETs", figure_text(small["shard_bytes_per_user_byte"], ".2f"))
    reads.add_row(*_lost_text(lost))
    if "s3" in figures:
        puts, gets = count_text(figures["s3"]["puts"], "PUT"), count_text(figures["s3"]["gets"], "GET")
        reads.add_row("through S3", f"{puts}, {gets}")
    reads.add_row("compared to the files", f"{count_text(verify.reads, 'read')}, {size_text(verify.bytes)}")
    colour = "red" if verify.mismatches else "green"
    reads.add_row("mismatches", f"[bold {colour}]{verify.mismatches}[/]")
    if verify.unanswered:
        reads.add_row("failed", f"[bold red]{verify.unanswered}[/]")
    out.print(reads)
    collection = Table(title="GC", title_justify="left", show_header=False)
    collection.add_row("objects deleted", f"{figures['deleted_objects']:,}")
    collection.add_row("blocks examined, deleted", f"{gc['blocks_examined']}, {gc['blocks_deleted']}")
    collection.add_row(
        "read to decide", f"{size_text(gc['header_bytes_read'])} of {size_text(gc['block_bytes_examined'])}"
    )
    collection.add_row("live bytes rewritten", size_text(gc["bytes_moved"]))
    collection.add_row("reclaimed", f"[bold green]{size_text(gc['bytes_reclaimed'])}[/] in data space")
    before, after = (figure_text(gc[f"utilisation_{when}"], ".2%") for when in ("before", "after"))
    collection.add_row("utilisation", f"{before} -> {after}")
    out.print(collection)
    out.print("Seconds: " + ", ".join(f"{step} {seconds:.1f}" for step, seconds in report.seconds.items()))


def _lost_text(lost: dict[str, Any] | None) -> tuple[str, str]:
    if lost is None:
        return "with OSDs down", "not tested: ceph.admin_keyring_file is not set"
    reads = count_text(lost["reads"], "read")
    if lost["degraded_reads"] is None:
        return f"with OSDs {lost['shards']} down", reads
    return f"with shards {lost['shards']} lost", f"{reads}, {lost['degraded_reads']} decoded"
