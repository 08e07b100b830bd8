"""The examples of docs/PYTHON.md: they run, print what they say, and are typed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRINTS = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def program() -> str:
    """All examples, as one program."""
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs/PYTHON.md").read_text(), re.DOTALL))


def test_the_examples_print_what_they_say(program: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == PRINTS.findall(program)
    assert len(PRINTS.findall(program)) > 10
    assert done.stderr == ""


def test_the_examples_are_typed(program: str, tmp_path: Path) -> None:
    """mypy checks them like a program of someone else, to which the package's `py.typed` offers its types."""
    source = tmp_path / "example.py"
    source.write_text(program + "\n\nreveal_type(store)\nreveal_type(info.state)\nreveal_type(reader)\n")
    cache = str(ROOT / ".mypy_cache/examples")  # its own: `make types` may be writing the other one now
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "--config-file="]
    done = subprocess.run([*command, str(source)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for name in ("object_store.ObjectStore", "states.ObjectState", "object_reader.ObjectReader"):
        assert f"{name}" in done.stdout
