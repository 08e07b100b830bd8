"""The commands s3 quota set, s3 quota show and s3 quota remove."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import emit, out
from nos_ec.cli.terminal.values import size_option
from nos_ec.composition.wiring import System
from nos_ec.core.errors import ConfigError, InvalidInput, NotFound
from nos_ec.core.quotas.quota import ANONYMOUS, Quota, account_record, decode, encode
from nos_ec.engine.texts import printable, size_text
from nos_ec.engine.upkeep.usage_keeper import buckets_of
from nos_ec.gateway.auth.accounts import require_account
from nos_ec.ports.metadata import ROOT_ACCOUNT, AccessKey, DocumentKind, KeyState, Sums

quota_app = typer.Typer(help="Quotas of buckets and accounts.", no_args_is_help=True, rich_markup_mode=None)

_Bucket = Annotated[str, typer.Argument(metavar="[BUCKET]", help="The bucket.")]
_Account = Annotated[str, typer.Option("--account", help="Instead of a bucket: all buckets of this account.")]
_Anonymous = Annotated[bool, typer.Option("--anonymous", help="Instead: all requests without a signature, together.")]
_Bytes = Annotated[str | None, typer.Option("--bytes", metavar="SIZE", help="Refuse what exceeds this, such as 1TiB.")]
_SoftBytes = Annotated[str | None, typer.Option("--soft-bytes", metavar="SIZE", help="Only warn above this.")]
_Objects = Annotated[int | None, typer.Option("--objects", metavar="N", help="Refuse more objects than this.")]
_SoftObjects = Annotated[int | None, typer.Option("--soft-objects", metavar="N", help="Only warn above this.")]


@quota_app.command("set")
def quota_set(
    ctx: typer.Context,
    bucket: _Bucket = "",
    account: _Account = "",
    anonymous: _Anonymous = False,
    hard_bytes: _Bytes = None,
    soft_bytes: _SoftBytes = None,
    objects: _Objects = None,
    soft_objects: _SoftObjects = None,
    requests: Annotated[
        int | None, typer.Option("--requests-per-s", metavar="N", help="Of no bucket: refuse more S3 requests.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--bytes-per-s", metavar="SIZE", help="Of no bucket: bodies and answers.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set the quota of a bucket or of an account, or rates.

    Replaces all its previous limits. PUTs notice within ten seconds. A bucket that was not metered before is limited
    once a producer has counted its objects.
    """
    quota = Quota(_size(soft_bytes), _size(hard_bytes), soft_objects, objects, requests, _size(rate))
    quota.require_valid()
    if not quota.has_limits:
        raise InvalidInput("give at least one limit, such as --bytes 1TiB; see also: nos-ec s3 quota remove")
    if bucket and quota.has_rates:
        raise InvalidInput("rates are those of an account: give --account instead of a bucket")
    if anonymous and quota.limits_usage:
        raise InvalidInput("anonymous requests have rates only: --requests-per-s and --bytes-per-s")
    account = _payer(account, anonymous)
    with _opened(ctx, bucket, account) as system:
        if not system.settings.store.count_usage:
            raise ConfigError("usage is not counted in this store; set store.count_usage for all its programs first")
        if account:
            _set_of_account(system, account, quota)
        else:
            _set_of_bucket(system, bucket, encode(quota))
    _show(bucket, account, quota, None, as_json)


@quota_app.command("show")
def quota_show(
    ctx: typer.Context,
    bucket: _Bucket = "",
    account: _Account = "",
    anonymous: _Anonymous = False,
    as_json: AsJson = False,
) -> None:
    """Show the quota of a bucket or of an account, and how much of it is used."""
    account = _payer(account, anonymous)
    with _opened(ctx, bucket, account) as system:
        metadata = system.metadata
        stored, used = _stored(system, bucket, account), None
        if account:
            used = metadata.account_usage(account)
        elif (found := metadata.bucket_usage(bucket)) is not None and found.counted_ms is not None:
            used = found.held
    quota = Quota() if stored is None else decode(stored)
    if not quota.has_limits:
        raise NotFound(f"{_name(bucket, account)} has no quota")
    _show(bucket, account, quota, used, as_json)


@quota_app.command("remove")
def quota_remove(
    ctx: typer.Context,
    bucket: _Bucket = "",
    account: _Account = "",
    anonymous: _Anonymous = False,
    as_json: AsJson = False,
) -> None:
    """Remove the quota of a bucket or of an account. A bucket stays metered until `nos-ec usage BUCKET --stop`."""
    account = _payer(account, anonymous)
    with _opened(ctx, bucket, account) as system:
        if account:
            system.metadata.remove_access_key(account_record(account))
        elif _stored(system, bucket, "") is not None:
            _set_of_bucket(system, bucket, encode(Quota()))
    text = f"{_name(bucket, account)} has no quota now"
    emit({**_named(bucket, account), "quota": None}, as_json, lambda: out.print(printable(text), markup=False))


@contextmanager
def _opened(ctx: typer.Context, bucket: str, account: str) -> Iterator[System]:
    if bool(bucket) == bool(account):
        raise InvalidInput("name a BUCKET, or an account with --account, or give --anonymous")
    if account and account != ANONYMOUS:
        require_account(account)
        if account == ROOT_ACCOUNT:
            raise InvalidInput(f"the account {ROOT_ACCOUNT} owns all buckets, and has no quota")
    with context(ctx).home(bucket) if bucket else context(ctx).system() as system:
        yield system


def _payer(account: str, anonymous: bool) -> str:
    """Return the account of a quota, which stands for anonymous requests if these are meant."""
    if account and anonymous:
        raise InvalidInput("give --account or --anonymous, and not both")
    return ANONYMOUS if anonymous else account


def _stored(system: System, bucket: str, account: str) -> bytes | None:
    if not account:
        return system.metadata.bucket_document(bucket, DocumentKind.QUOTA)
    record = system.metadata.access_key(account_record(account))
    return None if record is None else record.secret


def _set_of_bucket(system: System, bucket: str, body: bytes) -> None:
    now_ms = system.clock.now_ms()
    if not system.metadata.set_bucket_document(bucket, DocumentKind.QUOTA, body, now_ms):
        raise NotFound(f"there is no bucket {bucket}")
    system.metadata.meter_bucket(bucket, now_ms)


def _set_of_account(system: System, account: str, quota: Quota) -> None:
    """Store the quota. If it limits what the buckets of the account hold, meter them, which a producer repeats."""
    now_ms, name, body = system.clock.now_ms(), account_record(account), encode(quota)
    if not system.metadata.change_access_key(name, secret=body):
        system.metadata.add_access_key(AccessKey(name, account, body, KeyState.DISABLED, now_ms, "a quota"))
    for bucket in buckets_of(system.metadata, account) if quota.limits_usage else ():
        system.metadata.meter_bucket(bucket, now_ms)


def _size(text: str | None) -> int | None:
    return None if text is None else size_option(text)


def _name(bucket: str, account: str) -> str:
    if account == ANONYMOUS:
        return "anonymous access"
    return f"account {account}" if account else f"bucket {bucket}"


def _named(bucket: str, account: str) -> dict[str, object]:
    return {"account": account} if account else {"bucket": bucket}


def _show(bucket: str, account: str, quota: Quota, used: Sums | None, as_json: bool) -> None:
    def show() -> None:
        for words, value in (
            ("soft limit of bytes", quota.soft_bytes),
            ("hard limit of bytes", quota.hard_bytes),
            ("used", None if used is None else used.bytes),
        ):
            if value is not None:
                out.print(f"{words}: {size_text(value)}", markup=False)
        for words, value in (
            ("soft limit of objects", quota.soft_objects),
            ("hard limit of objects", quota.hard_objects),
            ("used", None if used is None else used.objects),
        ):
            if value is not None:
                out.print(f"{words}: {value:,}", markup=False)

        for words, value in (("requests a second", quota.requests_per_s), ("bytes a second", quota.bytes_per_s)):
            if value is not None:
                out.print(f"{words}: {value:,}", markup=False)

    held = None if used is None else {"bytes": used.bytes, "objects": used.objects}
    emit({**_named(bucket, account), "quota": asdict(quota), "used": held}, as_json, show)
