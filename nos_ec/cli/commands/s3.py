"""The commands s3 key, s3 encryption-key, s3 bucket and s3 grant. The others of s3 are in s3_serve.py,
s3_lifecycle.py and s3_quota.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.commands.s3_lifecycle import lifecycle_app
from nos_ec.cli.commands.s3_quota import quota_app
from nos_ec.cli.commands.s3_serve import serve, worker
from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import emit, out
from nos_ec.composition.cells import open_cells
from nos_ec.core.errors import InvalidInput, NotFound
from nos_ec.engine.texts import when
from nos_ec.gateway.auth.accounts import (
    SECRET_CHARS_MAX,
    Accounts,
    NewKey,
    require_account,
    require_new_bucket,
    rights_of,
    words_of,
)
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.auth.key_service import find_key_service
from nos_ec.gateway.auth.master_keys import find_master_keys
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.ports.metadata import ROOT_ACCOUNT, AccessKey, BucketRow, KeyState, Rights

s3_app = typer.Typer(
    help="The S3 gateway: access keys, buckets, grants, encryption.", no_args_is_help=True, rich_markup_mode=None
)
key_app = typer.Typer(help="Access keys.", no_args_is_help=True, rich_markup_mode=None)
encryption_key_app = typer.Typer(help="Keys that encrypt objects.", no_args_is_help=True, rich_markup_mode=None)
bucket_app = typer.Typer(help="Buckets and who may use them.", no_args_is_help=True, rich_markup_mode=None)
s3_app.add_typer(key_app, name="key")
s3_app.add_typer(encryption_key_app, name="encryption-key")
s3_app.add_typer(bucket_app, name="bucket")
s3_app.add_typer(lifecycle_app, name="lifecycle")
s3_app.add_typer(quota_app, name="quota")
s3_app.command("serve")(serve)
s3_app.command("worker", hidden=True)(worker)

_Key = Annotated[str, typer.Argument(metavar="KEY", help="The access key.")]
_Account = Annotated[str, typer.Argument(metavar="ACCOUNT", help="The owner of the key; root may do everything.")]


@key_app.command("create")
def key_create(
    ctx: typer.Context,
    account: _Account,
    note: Annotated[str, typer.Option("--note", help="What the key is for.")] = "",
    access_key: Annotated[
        str | None, typer.Option("--access-key", help="Name of the key, to keep using a key of another store.")
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option("--secret-file", help="File with its secret. Default: a new secret.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create an access key, and print its secret.

    The secret is stored encrypted with the master key of s3.master_key_file, and is not shown again.
    """
    with _accounts(ctx) as accounts:
        secret = None if secret_file is None else _read(secret_file)
        new = accounts.create_key(_masters(ctx), account, note, access_key, secret)
    _show_new(new, as_json)


@key_app.command("list")
def key_list(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List all access keys, without their secrets."""
    with context(ctx).system() as system:
        keys = list(Accounts(system.metadata, system.clock, os.urandom).keys())
        now_ms = system.clock.now_ms()
    emit({"keys": [_data(key) for key in keys]}, as_json, lambda: _print_keys(keys, now_ms))


@key_app.command("disable")
def key_disable(ctx: typer.Context, access_key: _Key, as_json: AsJson = False) -> None:
    """Refuse an access key from now on. Gateways notice within two seconds."""
    _set_state(ctx, access_key, KeyState.DISABLED, as_json)


@key_app.command("enable")
def key_enable(ctx: typer.Context, access_key: _Key, as_json: AsJson = False) -> None:
    """Accept an access key again."""
    _set_state(ctx, access_key, KeyState.ACTIVE, as_json)


@key_app.command("rotate")
def key_rotate(ctx: typer.Context, access_key: _Key, as_json: AsJson = False) -> None:
    """Give an access key a new secret, and print it. The old secret is refused from then on."""
    with _accounts(ctx) as accounts:
        new = accounts.rotate_key(_masters(ctx), access_key)
    _show_new(new, as_json)


@key_app.command("remove")
def key_remove(ctx: typer.Context, access_key: _Key, as_json: AsJson = False) -> None:
    """Remove an access key for good."""
    with _accounts(ctx) as accounts:
        accounts.remove_key(access_key)
    emit({"removed": access_key}, as_json, lambda: out.print(f"{access_key} is removed", markup=False))


@key_app.command("end-sessions")
def key_end_sessions(
    ctx: typer.Context,
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Whose sessions end.")],
    as_json: AsJson = False,
) -> None:
    """End all temporary credentials of an account.

    Gateways notice within two seconds. The access keys of the account stay valid.
    """
    with _accounts(ctx) as accounts:
        keys = accounts.end_sessions(account)
    text = f"the temporary credentials of {account} have ended; access keys: {keys}"
    emit({"account": account, "access_keys": keys}, as_json, lambda: out.print(text, markup=False))


@key_app.command("reencrypt")
def key_reencrypt(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Encrypt all secrets with the first master key.

    To change the master key: put the new one into the first line of s3.master_key_file, restart the gateways, run this
    command until it reports 0, and remove the other lines 36 hours later.
    """
    with _accounts(ctx) as accounts:
        changed = accounts.encrypt_again(_masters(ctx))
    emit({"encrypted": changed}, as_json, lambda: out.print(f"{changed} secrets were encrypted again"))


@encryption_key_app.command("add")
def encryption_key_add(
    ctx: typer.Context,
    kms_key: Annotated[
        str | None, typer.Option("--kms-key", metavar="NAME", help="For objects that ask for this KMS key (aws:kms).")
    ] = None,
    despite: Annotated[
        bool,
        typer.Option("--despite-unreadable-keys", help="Add a key although another one is lost with its objects."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a key of the store, which encrypts new objects from now on.

    With --kms-key, it encrypts only objects that ask for the KMS key of this name: one of the key service of
    s3.kms_url, which encrypts the new key, too; without a key service any name will do. The key is stored encrypted
    with the master key. Gateways use it after at most 10 seconds. Older keys are kept,
    because the objects that they encrypted need them. It fails if one of them was lost, or cannot be opened.
    """
    with context(ctx).system() as system:
        service = find_key_service(context(ctx).settings().s3, system.clock)
        ring = KeyRing(system.metadata, _masters(ctx), system.clock, service)
        number = ring.add(os.urandom, kms_key, despite_unreadable=despite)
    text = f"key {number} encrypts new objects" + ("" if kms_key is None else f" of the KMS key {kms_key}")
    emit({"number": number}, as_json, lambda: out.print(text, markup=False))


@encryption_key_app.command("rewrap")
def encryption_key_rewrap(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Encrypt keys again after a KMS key was rotated.

    The key service encrypts all keys that it has wrapped with the newest versions of its keys. No object changes.
    """
    with context(ctx).system() as system:
        service = find_key_service(context(ctx).settings().s3, system.clock)
        changed = KeyRing(system.metadata, _masters(ctx), system.clock, service).wrap_again(os.urandom)
    emit({"rewrapped": changed}, as_json, lambda: out.print(f"{changed} keys were encrypted again"))


@bucket_app.command("create")
def bucket_create(
    ctx: typer.Context,
    bucket: Annotated[str, typer.Argument(metavar="BUCKET", help="Its name.")],
    owner: Annotated[str, typer.Option("--owner", help="The account that owns it.")] = ROOT_ACCOUNT,
    as_json: AsJson = False,
) -> None:
    """Create a private bucket. Does nothing if its owner already has it."""
    require_account(owner)
    require_new_bucket(bucket)
    with _accounts_of_bucket(ctx, bucket, owner) as accounts:
        row = accounts.create_bucket(bucket, owner)
    emit(_bucket(row, {}), as_json, lambda: out.print(f"bucket {row.name} belongs to {row.owner}", markup=False))


@bucket_app.command("list")
def bucket_list(
    ctx: typer.Context,
    owner: Annotated[str | None, typer.Option("--owner", help="Only buckets of this account.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the buckets, their owners, and what others may do in them.

    Buckets that were not created, but exist because objects were put into them, belong to the account root.
    """
    with _accounts(ctx) as accounts:
        found = list(accounts.buckets(owner))
    emit({"buckets": [_bucket(row, grants) for row, grants in found]}, as_json, lambda: _print_buckets(found, owner))


@bucket_app.command("give")
def bucket_give(
    ctx: typer.Context,
    bucket: Annotated[str, typer.Argument(metavar="BUCKET", help="The bucket.")],
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Its new owner.")],
    as_json: AsJson = False,
) -> None:
    """Give a bucket and its objects to another account. The previous owner loses all rights there, unless it gets a
    grant."""
    with _accounts_of_bucket(ctx, bucket) as accounts:
        accounts.give_bucket(bucket, account)
    text = f"bucket {bucket} belongs to {account}"
    emit({"bucket": bucket, "owner": account}, as_json, lambda: out.print(text, markup=False))


@s3_app.command("grant")
def grant(
    ctx: typer.Context,
    bucket: Annotated[str, typer.Argument(metavar="BUCKET", help="The bucket.")],
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Who may use it.")],
    rights: Annotated[str, typer.Argument(metavar="RIGHTS", help="Some of read,write,list,owner; or none.")],
    as_json: AsJson = False,
) -> None:
    """Set what an account may do in another account's bucket. Replaces its previous rights there."""
    given = rights_of(rights)
    with _accounts_of_bucket(ctx, bucket) as accounts:
        accounts.grant(bucket, account, given)
    words = words_of(given)
    text = f"{account} may do this in {bucket}: {', '.join(words) or 'nothing'}"
    emit({"bucket": bucket, "account": account, "rights": words}, as_json, lambda: out.print(text, markup=False))


@contextmanager
def _accounts(ctx: typer.Context) -> Iterator[Accounts]:
    with context(ctx).system() as system:
        yield Accounts(system.metadata, system.clock, os.urandom)


@contextmanager
def _accounts_of_bucket(ctx: typer.Context, bucket: str, owner: str | None = None) -> Iterator[Accounts]:
    """Yields what manages a bucket, in the cell that holds it. `owner`: the bucket is about to be created for it."""
    settings = context(ctx).whole()
    if not settings.cells:
        with _accounts(ctx) as accounts:
            yield accounts
        return
    with open_cells(settings, SystemClock()) as cells:
        place = cells.place(bucket) if owner is None else cells.claim(bucket, owner)
        if place is None:
            raise NotFound(f"there is no bucket {bucket}")
        context(ctx).require_home(bucket, place.home)
        system = cells.system(place.home)
        yield Accounts(system.metadata, system.clock, os.urandom, cells.state_of(place))


def _masters(ctx: typer.Context) -> MasterKeys:
    return find_master_keys(context(ctx).settings().s3)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(SECRET_CHARS_MAX + 3).decode().strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: the secret cannot be read: {error}") from error


def _set_state(ctx: typer.Context, access_key: str, state: KeyState, as_json: bool) -> None:
    with _accounts(ctx) as accounts:
        accounts.set_key_state(access_key, state)
    text = f"{access_key} is {state.value}"
    emit({"access_key": access_key, "state": state.value}, as_json, lambda: out.print(text, markup=False))


def _show_new(new: NewKey, as_json: bool) -> None:
    def show() -> None:
        out.print(f"access key: {new.key.access_key}", markup=False)
        out.print(f"secret key: {new.secret}", markup=False)
        out.print("The secret is not shown again.")

    emit(_data(new.key) | {"secret": new.secret}, as_json, show)


def _data(key: AccessKey) -> dict[str, object]:
    return {
        "access_key": key.access_key,
        "account": key.account,
        "state": key.state.value,
        "created_ms": key.created_ms,
        "note": key.note,
    }


def _print_keys(keys: list[AccessKey], now_ms: int) -> None:
    if not keys:
        out.print("there are no access keys")
        return
    table = Table("access key", "account", "state", "created", "note", box=None, pad_edge=False)
    for key in keys:
        table.add_row(key.access_key, key.account, key.state.value, when(key.created_ms, now_ms), key.note)
    out.print(table)


def _bucket(row: BucketRow, grants: dict[str, Rights]) -> dict[str, object]:
    return {
        "bucket": row.name,
        "owner": row.owner,
        "created_ms": row.created_ms or None,
        "acl": row.acl.value,
        "grants": {account: words_of(rights) for account, rights in grants.items()},
    }


def _print_buckets(found: list[tuple[BucketRow, dict[str, Rights]]], owner: str | None) -> None:
    if not found:
        out.print("there are no buckets" if owner is None else f"{owner} has no buckets", markup=False)
        return
    table = Table("bucket", "owner", "acl", "others may", box=None, pad_edge=False)
    for row, grants in found:
        others = "; ".join(f"{account}: {','.join(words_of(rights))}" for account, rights in grants.items())
        table.add_row(row.name, row.owner, row.acl.value, others)
    out.print(table)
