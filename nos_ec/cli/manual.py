"""Writes the man page nos-ec(1) from the commands themselves and the table of exit codes in docs/CLI.md.

usage: python -m nos_ec.cli.manual docs/CLI.md 2026-01-31 > nos-ec.1
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from textwrap import wrap
from typing import Any

from nos_ec import __version__
from nos_ec.cli.app import all_commands

NAME = "nos-ec"
_LINE_MAX = 76
_ENVIRONMENT = {
    "NOS_EC_CONFIG": "The configuration file, if --config is not given.",
    "NOS_EC_CELL": "The cell, if --cell is not given.",
    "NOS_EC_SECTION__KEY": "Overrides the setting KEY of [SECTION]. `nos-ec config show` lists all settings.",
}
_FILES = {
    "./nos-ec.toml": "Read if neither --config nor NOS_EC_CONFIG names a file.",
    "/etc/nos-ec/nos-ec.toml": "Read if none of the above is given or exists. The systemd units and the crontab name"
    " it.",
    "/usr/share/nos-ec": "Contains the folders docs and deploy, to which messages refer, if nos_ec is installed as a"
    " Debian package.",
}


def manual(reference: str, date: str) -> str:
    """Return the page in roff (man macros). `reference` is the text of docs/CLI.md, `date` is YYYY-MM-DD.

    Raises ValueError if the reference has no table of exit codes.
    """
    root = all_commands()
    context = root.make_context(NAME, [], resilient_parsing=True)
    lines = [
        f'.TH NOS\\-EC 1 {date} "nos_ec {__version__}" "User Commands"',
        ".ad l",  # a long list of values has no spaces that could be stretched
        ".SH NAME",
        f"{_plain(NAME)} \\- packs small objects into full erasure\\-coded stripes",
        ".SH SYNOPSIS",
        f".B {_plain(NAME)}",
        r"[\fB\-\-config\fR \fIFILE\fR] \fICOMMAND\fR [\fIARGUMENT\fR...]",
        ".SH DESCRIPTION",
        *_paragraphs(root.help or ""),
        ".SH OPTIONS",
        *_parameters(root, context),
        ".SH COMMANDS",
    ]
    for command, words, inner in _commands(root, context):
        usage = " ".join(words + [piece for piece in command.collect_usage_pieces(inner) if piece != "[OPTIONS]"])
        lines += [f'.SS "{_plain(usage)}"', *_paragraphs(command.help or ""), *_parameters(command, inner)]
    lines += [".SH EXIT STATUS", *_list(exit_codes(reference).items())]
    lines += [".SH ENVIRONMENT", *_list(_ENVIRONMENT.items()), ".SH FILES", *_list(_FILES.items())]
    return "\n".join(lines) + "\n"


def exit_codes(reference: str) -> dict[str, str]:
    """Return {code: meaning} from the table under `## Exit codes`. Raises ValueError if there is no such table."""
    section = reference.partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.*) ?\|$", section, re.MULTILINE)
    if not rows:
        raise ValueError("the reference has no table of exit codes")
    return {code: _sentences(meaning, advice.strip()) for code, meaning, advice in rows}


def _sentences(*texts: str) -> str:
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in texts if text).replace("\\|", "|")


def _commands(group: Any, context: Any) -> Iterator[tuple[Any, list[str], Any]]:
    """Yields (command, its words, its context) for every command, including the commands of groups."""
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        inner = type(context)(command, info_name=name, parent=context)
        words = inner.command_path.split(" ")[1:]
        if hasattr(command, "commands"):
            yield from _commands(command, inner)
        else:
            yield command, words, inner


def _parameters(command: Any, context: Any) -> Iterator[str]:
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    return _list(record for record in records if record)


def _list(entries: Any) -> Iterator[str]:
    for term, text in entries:
        breakable = _plain(term).replace("|", "|\\:")  # a line may end within a long list of values
        yield from (".TP", f".B {breakable}", *_filled(text))


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(cleandoc(text).split("\n\n")):
        yield from ([".PP"] if number else [])
        yield from _filled(paragraph)


def _filled(text: str) -> list[str]:
    # roff would take a line that begins with a dot or a quote as a request.
    broken = wrap(text, _LINE_MAX, break_long_words=False, break_on_hyphens=False)
    return [re.sub(r"^(?=[.'])", r"\\&", _plain(line)) for line in broken]


def _plain(text: str) -> str:
    """Escape a text for roff, so that it is shown literally. Hyphens stay hyphens, so that options can be copied into a
    shell."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")


if __name__ == "__main__":
    sys.stdout.write(manual(Path(sys.argv[1]).read_text(), sys.argv[2]))
