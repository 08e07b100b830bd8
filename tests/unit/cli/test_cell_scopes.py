"""Which commands work on all cells of a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nos_ec.cli.app import all_commands
from nos_ec.cli.terminal.cells import _SCOPES

BY_BUCKET = {"undelete", "put", "get", "rm", "ls", "stat", "s3 bucket create", "s3 bucket give", "s3 grant"}
"""Their buckets say which cell they are about."""
WITHOUT_STORE = {"simulate packing", "simulate gc", "capacity", "demo", "config show"}
OF_ALL_CELLS = {"api", "console", "s3 serve", "s3 worker", "cells list", "cells create-wide", "cells rebuild-directory"}
OF_SEVERAL_CELLS = {"cells move", "cells drain", "cells moves", "cells purge"}


def words_of(group: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from words_of(command, (*words, name))
        else:
            yield " ".join((*words, name))


def test_it_is_known_for_each_command_which_cells_it_is_about() -> None:
    commands = set(words_of(all_commands()))
    others = BY_BUCKET | WITHOUT_STORE | OF_ALL_CELLS | OF_SEVERAL_CELLS
    assert commands == {*_SCOPES, *others}
    assert not others & _SCOPES.keys()
