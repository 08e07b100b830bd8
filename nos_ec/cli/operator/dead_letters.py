"""The command dead-letters."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import count_text, emit, out
from nos_ec.composition.backends import read_dead_letters
from nos_ec.engine.texts import printable
from nos_ec.ports.message_log import DeadLetter

_SHOWN_BYTES_MAX = 2_000
"""How many bytes of each key and value are shown. A pack request has some 200 bytes."""


def dead_letters(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of letters.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List messages that no consumer could process. Shows the newest ones, with the reason. Their objects, if there are
    any, are published again automatically."""
    letters = read_dead_letters(context(ctx).settings(), limit)
    data = {"dead_letters": [_data(letter) for letter in letters]}

    def human() -> None:
        for one in data["dead_letters"]:
            out.print(f"partition {one['partition']} offset {one['offset']}: {printable(one['reason'])}", markup=False)
            size = count_text(one["value_bytes"], "byte")
            out.print(f"    key {printable(one['key'])!r}, {size}: {printable(one['value'])}", markup=False)
        out.print(count_text(len(letters), "dead letter"))

    emit(data, as_json, human)


def _data(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter for JSON. Key and value are text, with bytes that are not UTF-8 escaped, and may be cut;
    `key_bytes` and `value_bytes` are their full lengths."""
    message = letter.message
    return {
        "partition": message.partition,
        "offset": message.offset,
        "reason": letter.reason,
        "key": _text(message.key),
        "key_bytes": len(message.key),
        "value": _text(message.value),
        "value_bytes": len(message.value),
    }


def _text(content: bytes) -> str:
    return content[:_SHOWN_BYTES_MAX].decode(errors="backslashreplace")
