"""Reads the documents in docs/ as tests do: the commands and the expected output in their fenced blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Block:
    """A fenced block: the title of its section, its info string (such as `sh embedded`) and its text."""

    section: str
    info: str
    text: str


def blocks(document: str) -> list[Block]:
    """All fenced blocks of docs/<document>, in order. Lines that look like titles inside a block are not titles."""
    found, section, info, lines = [], "", "", None
    for line in (DOCS / document).read_text().splitlines():
        if lines is None and (opened := re.fullmatch(r"```(.*)", line)):
            info, lines = opened[1].strip(), list[str]()
        elif lines is not None and line == "```":
            found.append(Block(section, info, "\n".join(lines)))
            lines = None
        elif lines is not None:
            lines.append(line)
        elif title := re.fullmatch(r"#+ (.*)", line):
            section = title[1]
    assert lines is None, f"{document}: a block is not closed"
    return found
