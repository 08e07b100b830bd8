"""What all clients store."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

MIB = 1 << 20


def files() -> Mapping[str, bytes]:
    """Contents by name: of usual sizes, and with the names that clients and servers encode in different ways."""
    chance = random.Random(20)
    sizes = {
        "empty": 0,
        "one": 1,
        "small.txt": 1000,
        "one-mib.bin": MIB,
        "nested/deep/er/file.bin": 70_000,
        "with space and  two.txt": 11,
        "ünïcode-日本語.txt": 12,
        "a+b=c&d,e;f@g:h.txt": 13,
        "100%25 %2F%.txt": 14,
        "it's (here)!*~$.txt": 15,
    }
    return {name: chance.randbytes(size) for name, size in sizes.items()}


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write them below a folder."""
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def files_below(folder: Path) -> dict[str, bytes]:
    """The contents of all files below a folder, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same(found: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> None:
    """Raises AssertionError that names what differs, without its bytes."""
    assert found.keys() == wanted.keys(), sorted(found.keys() ^ wanted.keys())
    different = [name for name, data in wanted.items() if found[name] != data]
    assert not different, [(name, len(found[name]), len(wanted[name])) for name in different]
