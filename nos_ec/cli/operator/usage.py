"""The command usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.table import Table

from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import count_text, emit, out
from nos_ec.composition.wiring import System
from nos_ec.core.errors import ConfigError, InvalidInput, NotFound
from nos_ec.core.quotas.quota import Quota, decode, encode
from nos_ec.engine.figures.bucket_count import Counted, count_bucket
from nos_ec.engine.texts import printable, size_text
from nos_ec.ports.metadata import BucketUsage, DocumentKind, Sums

_PAGE_BUCKETS = 1000


def usage(
    ctx: typer.Context,
    bucket: Annotated[str, typer.Argument(metavar="[BUCKET]", help="Default: all metered buckets.")] = "",
    account: Annotated[str, typer.Option("--account", help="Sum up the metered buckets of this account.")] = "",
    exact: Annotated[
        bool, typer.Option("--exact", help="Count all rows now, and show by how much the sums are off.")
    ] = False,
    start: Annotated[bool, typer.Option("--start", help="Meter the bucket from now on.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Meter it no longer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how many bytes and objects buckets hold.

    Counts versions, parts of uploads and manifests as they are stored, but neither the trash nor delete markers. The
    sums of metered buckets are kept up to date by their changes (store.count_usage); --exact reads a row for each
    object, of any bucket.
    """
    if (start or stop) and (not bucket or exact or account or start == stop):
        raise InvalidInput("--start and --stop need a BUCKET, and no other option")
    if account and (bucket or exact):
        raise InvalidInput("--account needs neither a BUCKET nor --exact")
    if start or stop:
        _switch(ctx, bucket, start, as_json)
        return
    with context(ctx).home(bucket) if bucket else context(ctx).system() as system:
        if account:
            _show_account(system, account, as_json)
            return
        found = _of_bucket(system, bucket, exact) if bucket else list(_all(system, exact))
    emit({"buckets": [_data(*one) for one in found]}, as_json, lambda: _print(found))


_Found = tuple[str, BucketUsage | None, Counted | None]
"""A bucket, its sums if it is metered, and what was counted with --exact."""


def _of_bucket(system: System, bucket: str, exact: bool) -> list[_Found]:
    sums = system.metadata.bucket_usage(bucket)
    if sums is None and not exact:
        raise NotFound(f"bucket {bucket} is not metered; use --exact to count it now, or --start to meter it")
    return [(bucket, sums, count_bucket(system.metadata, bucket) if exact else None)]


def _all(system: System, exact: bool) -> Iterator[_Found]:
    after = ""
    while page := system.metadata.bucket_usages(after, _PAGE_BUCKETS):
        after = page[-1].bucket
        for one in page:
            yield one.bucket, one, count_bucket(system.metadata, one.bucket) if exact else None


def _switch(ctx: typer.Context, bucket: str, start: bool, as_json: bool) -> None:
    with context(ctx).home(bucket) as system:
        if start and not system.settings.store.count_usage:
            raise ConfigError("usage is not counted in this store; set store.count_usage for all its programs first")
        now_ms = system.clock.now_ms()
        stored = system.metadata.bucket_document(bucket, DocumentKind.QUOTA)
        if not start and stored is not None and decode(stored).has_limits:
            raise InvalidInput(f"bucket {bucket} has a quota; remove it first: nos-ec s3 quota remove {bucket}")
        if start == (stored is None):
            body = encode(Quota()) if start else None
            if not system.metadata.set_bucket_document(bucket, DocumentKind.QUOTA, body, now_ms) and start:
                raise NotFound(f"there is no bucket {bucket}")
        if start:
            system.metadata.meter_bucket(bucket, now_ms)
        else:
            system.metadata.unmeter_bucket(bucket)
    text = (
        f"bucket {bucket} is metered; a producer counts its objects soon"
        if start
        else f"bucket {bucket} is not metered"
    )
    emit({"bucket": bucket, "metered": start}, as_json, lambda: out.print(printable(text), markup=False))


def _show_account(system: System, account: str, as_json: bool) -> None:
    sums = system.metadata.account_usage(account)
    text = f"the metered buckets of {account} hold {_words(sums)}"
    emit({"account": account, **_sums(sums)}, as_json, lambda: out.print(printable(text), markup=False))


def _data(bucket: str, sums: BucketUsage | None, counted: Counted | None) -> dict[str, Any]:
    data: dict[str, Any] = {"bucket": bucket, "metered": sums is not None}
    if sums is not None:
        data |= {**_sums(sums.held), "counted_ms": sums.counted_ms}
    if counted is not None:
        data["exact"] = _sums(counted.sums)
        data["exact"]["off"] = None if counted.drift is None else _sums(counted.correction)
        data["exact"]["changed_meanwhile"] = None if counted.drift is None else _sums(counted.drift)
    return data


def _sums(sums: Sums) -> dict[str, Any]:
    return {"bytes": sums.bytes, "objects": sums.objects}


def _words(sums: Sums) -> str:
    return f"{size_text(sums.bytes)} in {count_text(sums.objects, 'object')}"


def _print(found: list[_Found]) -> None:
    if not found:
        out.print("no bucket is metered")
        return
    table = Table("bucket", "bytes", "objects", "exact", "off by", box=None, pad_edge=False)
    for bucket, sums, counted in found:
        held = ("not metered", "") if sums is None else ("being counted", "")
        if sums is not None and sums.counted_ms is not None:
            held = size_text(sums.held.bytes), f"{sums.held.objects:,}"
        exact = "" if counted is None else _words(counted.sums)
        is_known = (
            sums is not None and sums.counted_ms is not None and counted is not None and counted.drift is not None
        )
        off = (
            f"{counted.correction.bytes:+,} B, {counted.correction.objects:+,}"
            if counted is not None and is_known
            else ""
        )
        table.add_row(printable(bucket), *held, exact, off)
    out.print(table)
