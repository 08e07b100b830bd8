"""The man page: every command and option is in it, as the program has them, and no checker of man pages complains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nos_ec.cli.app import all_commands
from nos_ec.cli.manual import exit_codes, manual
from tests.rig.documents import DOCS

REFERENCE = (DOCS / "CLI.md").read_text()


@pytest.fixture(scope="module")
def page() -> str:
    return manual(REFERENCE, "2026-01-31")


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif not command.hidden:  # what only the program itself runs
            yield (*path, name), command


def sections(page: str) -> dict[str, str]:
    """{usage of a command: its part of the page}, hyphens as they are typed."""
    parts = page.replace("\\-", "-").partition("\n.SH COMMANDS\n")[2].partition("\n.SH ")[0].split('.SS "')[1:]
    return {part.partition('"\n')[0]: part for part in parts}


def test_every_command_and_option_is_in_the_page(page: str) -> None:
    found = sections(page)
    known = dict(commands(all_commands()))
    assert len(known) > 10
    for path, command in known.items():
        words = " ".join(path)
        (text,) = [part for usage, part in found.items() if f"{usage} ".startswith(f"{words} ")]
        for parameter in command.params:
            for option in [*parameter.opts, *parameter.secondary_opts]:
                assert option.upper() in text.upper() or parameter.metavar in text, (words, option)
    assert len(found) == len(known)


def test_the_exit_codes_are_those_of_the_reference(page: str) -> None:
    codes = exit_codes(REFERENCE)
    assert codes["0"] == "Done."
    space = "No space, no free inodes, a used-up quota, or only the reserve is left. Delete and run GC, or add space."
    assert codes["8"] == space
    assert codes.keys() == {*map(str, range(14)), "130", "141", "143"}
    assert all(f".TP\n.B {code}\n" in page for code in codes)


def test_a_reference_without_exit_codes_is_refused() -> None:
    with pytest.raises(ValueError, match="no table of exit codes"):
        manual("# The command line\n", "2026-01-31")
