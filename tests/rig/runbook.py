"""Runs the commands of docs/RUNBOOKS.md as they stand there, and compares their output with what it says.

A block that begins with ```sh embedded runs on an embedded store, one with ```sh stack on the servers of
deploy/dev, and one of docs/VITESS.md with ```sh vitess on Vitess. The blocks of a section run one after the other in
the same shell, which stops at the first command that fails. A line `#> text` is expected output of the command above
it; `...` stands for anything within the line.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.rig.documents import blocks
from tests.rig.programs import PACKAGE_OF, need_program
from tests.rig.started_programs import started_by_shell

DOCUMENT = "RUNBOOKS.md"
TIME_S_MAX = 600
_MARK = "=== end of block "


def sections(where: str, document: str = DOCUMENT) -> dict[str, list[str]]:
    """{section: its blocks for `where`, such as embedded or stack}, in order."""
    found: dict[str, list[str]] = {}
    for block in blocks(document):
        if block.info == f"sh {where}":
            found.setdefault(block.section, []).append(block.text)
    return found


def run_section(texts: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Run the blocks of a section in `folder`. Raises AssertionError when one fails or its output differs. Installs
    the programs that they need."""
    for program in started_by_shell("\n".join(texts)) & PACKAGE_OF.keys():
        need_program(program)
    script = "".join(f"{text}\nprintf '{_MARK}%s\\n' {number}\n" for number, text in enumerate(texts))
    try:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIME_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        said = (late.output or b"").decode(errors="replace")
        raise AssertionError(f"not done after {TIME_S_MAX} s:\n{said}") from late
    assert ran.returncode == 0, f"status {ran.returncode} after:\n{ran.stdout}"
    parts = re.split(rf"^{_MARK}\d+\n", ran.stdout, flags=re.MULTILINE)
    for text, said in zip(texts, parts, strict=False):
        missing = unmet(text, said)
        assert missing is None, f"expected: {missing}\nbut got:\n{said}"


def unmet(text: str, said: str) -> str | None:
    """The first `#>` line of a block that its output does not have, in this order; None when it has all."""
    lines = iter(said.splitlines())
    for found in re.finditer(r"^ *#> (.*)$", text, re.MULTILINE):
        expected: str = found[1]
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in expected.split("...")))
        if not any(pattern.search(line) for line in lines):
            return expected
    return None
