"""The commands quarantine list and quarantine release."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from rich.table import Table

from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import emit, out
from nos_ec.core.errors import InvalidInput, NotFound
from nos_ec.engine.check.quarantine import Held, held, release
from nos_ec.engine.texts import when

_ID = re.compile("[0-9a-f]{32}")

quarantine_app = typer.Typer(
    help="Unreferenced blocks and copies, until they are deleted.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@quarantine_app.command("list")
def quarantine_list(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List quarantined blocks and copies, and their end dates.

    Blocks and landing copies that nothing refers to are put here by `check --plan` and `apply`. A day later GC deletes
    the blocks, and a consumer the copies.
    """
    with context(ctx).system() as system:
        found = list(held(system.metadata))
        now_ms = system.clock.now_ms()
    emit({"held": [_data(one) for one in found]}, as_json, lambda: _print(found, now_ms))


@quarantine_app.command("release")
def quarantine_release(
    ctx: typer.Context,
    held_id: Annotated[str, typer.Argument(metavar="ID", help="A block or landing copy (32 hex digits).")],
    as_json: AsJson = False,
) -> None:
    """Take a block or landing copy out of quarantine.

    It is not deleted then, and the next check reports it again, as a block without a row or a copy without an owner. If
    it is already being deleted, the command exits with 5.
    """
    if not _ID.fullmatch(held_id.lower()):
        raise InvalidInput(f"{held_id!r}: write the 32 hexadecimal digits that `nos-ec quarantine list` shows")
    with context(ctx).system() as system:
        released = release(system.metadata, bytes.fromhex(held_id))
    if not released:
        raise NotFound(f"{held_id} is not in quarantine; if it was, it was released or deleted")
    emit({"released": held_id.lower()}, as_json, lambda: out.print(f"{held_id.lower()} is out of quarantine"))


def _data(one: Held) -> dict[str, object]:
    data: dict[str, object] = {"kind": one.kind.value, "id": one.id.hex(), "delete_after_ms": one.delete_after_ms}
    return data if one.stripes is None else data | {"stripes": one.stripes}


def _print(found: list[Held], now_ms: int) -> None:
    if not found:
        out.print("nothing is in quarantine")
        return
    table = Table("kind", "id", "kept until", box=None, pad_edge=False)
    for one in found:
        table.add_row(one.kind.value, one.id.hex(), when(one.delete_after_ms, now_ms))
    out.print(table)
