"""The commands s3 lifecycle list and s3 lifecycle run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import count_text, emit, out, time_text
from nos_ec.composition.wiring import System
from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.expiry import ExpiryRule
from nos_ec.engine.expiry.lifecycle_bucket import WalkCounts
from nos_ec.engine.expiry.lifecycle_walk import WalkState, read_walk
from nos_ec.engine.texts import printable, size_text

lifecycle_app = typer.Typer(
    help="Lifecycle rules: when objects of buckets expire.", no_args_is_help=True, rich_markup_mode=None
)


@lifecycle_app.command("list")
def lifecycle_list(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the buckets with rules, and the daily walk's progress.

    GC applies the rules: once a day it walks through these buckets.
    """
    with context(ctx).system() as system:
        rules = dict(system.worker.lifecycle_walk().rules)
        walk, now_ms = read_walk(system.metadata), system.clock.now_ms()
    data = {
        "buckets": [
            {"bucket": bucket, "rules": None if found is None else [asdict(rule) for rule in found]}
            for bucket, found in rules.items()
        ],
        "walk": None if walk is None else asdict(walk),
    }
    emit(data, as_json, lambda: _print(rules, walk, now_ms))


@lifecycle_app.command("run")
def lifecycle_run(
    ctx: typer.Context,
    bucket: Annotated[str | None, typer.Argument(metavar="[BUCKET]", help="A bucket. Default: all with rules.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what has expired.")] = False,
    as_json: AsJson = False,
) -> None:
    """Apply lifecycle rules now, without waiting for GC.

    Deletes expired objects and aborts uploads. Buckets that fail are named; the others are processed. The daily walk is
    not affected.
    """
    with context(ctx).system() as system:
        found = _apply(system, bucket, dry_run=dry_run)
    data = {"dry_run": dry_run, "buckets": [{"bucket": name, **result} for name, result in found.items()]}
    emit(data, as_json, lambda: _print_found(found, dry_run=dry_run))
    if any(result["error"] for result in found.values()):
        raise Transient("the rules of some buckets could not be applied; see above, and try again")


def _apply(system: System, bucket: str | None, *, dry_run: bool) -> dict[str, dict[str, Any]]:
    """Apply the rules, and return for each bucket what has expired, and the error if it failed. Raises NotFound."""
    lifecycle = system.worker.lifecycle_walk()
    found: dict[str, dict[str, Any]] = {}
    for name, rules in lifecycle.rules:
        if bucket not in (None, name):
            continue
        error: str | None = None
        expired = WalkCounts(failed=1)
        if rules is None:
            error = "its rules cannot be read"
        else:
            try:
                expired = lifecycle.walk_bucket(name, rules, dry_run=dry_run)
            except Transient as failure:
                error = str(failure)
        found[name] = {**asdict(expired), "error": error}
    if bucket is not None and not found:
        raise NotFound(f"bucket {printable(bucket)} has no lifecycle rules")
    return found


def _print(rules: dict[str, Sequence[ExpiryRule] | None], walk: WalkState | None, now_ms: int) -> None:
    for bucket, found in rules.items():
        for rule in found or ():
            text = f"{bucket}/{rule.prefix}  {rule.rule_id}  {_action(rule)}{'' if rule.enabled else '  (disabled)'}"
            out.print(printable(text), markup=False)
        if found is None:
            out.print(f"{printable(bucket)}  cannot be read", markup=False)
    if not rules:
        out.print("no bucket has lifecycle rules", markup=False)
    if walk is None:
        out.print("no walk yet; GC walks through the buckets once a day", markup=False)
        return
    if walk.ended_ms is not None:
        state = f"ended {time_text(walk.ended_ms)}"
    else:
        where = walk.within or walk.bucket
        state = f"is at {printable(where)}" if where else "has begun"
    done = walk.done
    examined, uploads = count_text(done.examined, "object"), count_text(done.uploads, "upload")
    text = f"{examined} examined, {done.objects:,} deleted ({size_text(done.bytes)}), {uploads} aborted"
    text += _versions_text(done.versions, done.markers, "removed")
    out.print(f"walk of {time_text(walk.started_ms)}: {state}; {text}", markup=False)
    for bucket, (tries, due_ms) in walk.failed.items():
        left_s = max(0, due_ms - now_ms) // 1000
        out.print(f"{printable(bucket)} has failed {tries} times; again in {left_s} s", markup=False)


def _action(rule: ExpiryRule) -> str:
    conditions = [f"{key}={value}" for key, value in rule.tags]
    actions = []
    if rule.size_above is not None:
        conditions.append(f"more than {count_text(rule.size_above, 'byte')}")
    if rule.size_below is not None:
        conditions.append(f"less than {count_text(rule.size_below, 'byte')}")
    if rule.days is not None:
        actions.append(f"expire after {count_text(rule.days, 'day')}")
    if rule.date_ms is not None:
        actions.append(f"expire on {time_text(rule.date_ms)}")
    if rule.markers:
        actions.append("remove delete markers that are alone")
    if rule.noncurrent_days is not None:
        kept = f", but {rule.newer_versions}" if rule.newer_versions is not None else ""
        actions.append(f"delete noncurrent versions after {count_text(rule.noncurrent_days, 'day')}{kept}")
    if rule.abort_days is not None:
        actions.append(f"abort uploads after {count_text(rule.abort_days, 'day')}")
    return ", ".join(actions) + (f" if {' and '.join(conditions)}" if conditions else "")


def _print_found(found: dict[str, dict[str, Any]], *, dry_run: bool) -> None:
    if not found:
        out.print("no bucket has lifecycle rules", markup=False)
    done = ("to be deleted", "to be aborted") if dry_run else ("deleted", "aborted")
    for bucket, result in found.items():
        objects = f"{result['objects']:,} of {count_text(result['examined'], 'object')}"
        uploads = count_text(result["uploads"], "upload")
        text = f"{objects} ({size_text(result['bytes'])}) {done[0]}, {uploads} {done[1]}"
        text += _versions_text(result["versions"], result["markers"], "to be removed" if dry_run else "removed")
        out.print(f"{printable(bucket)}: {result['error'] or text}", markup=False)


def _versions_text(versions: int, markers: int, done: str) -> str:
    """Describe the removed noncurrent versions and delete markers; return '' if there are none."""
    if not versions and not markers:
        return ""
    return f"; {count_text(versions, 'noncurrent version')} and {count_text(markers, 'delete marker')} {done}"
