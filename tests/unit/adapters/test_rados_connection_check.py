"""The probe objects of `config check --connect`: removed whatever happens, or named."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any, cast

import pytest

from nos_ec.adapters.rados.client.pool import Pool
from nos_ec.adapters.rados.connection_check import try_access
from nos_ec.core.errors import ConfigError, Corrupt, NosError, NoSpace, Transient


class Failing:
    """A pool whose calls fail with these errno values (0: they work), in order: write, read, remove."""

    name = "blocks"

    def __init__(self, *codes: int, reads: bytes | None = None) -> None:
        self._codes = list(codes)
        self._reads = reads
        self.calls: list[str] = []

    def _do(self, what: str, name: str) -> None:
        self.calls.append(what)
        assert name.startswith("nos_ec.probe")
        if code := self._codes.pop(0):
            raise OSError(code, os.strerror(code))

    def write(self, name: str, *steps: Any) -> int:
        self._do("write" if len(steps) == 2 else "remove", name)
        return 1

    def read(self, name: str, offset: int, length: int) -> bytes:
        self._do("read", name)
        assert self._reads is not None
        return self._reads

    def size_of(self, name: str) -> int:
        self._do("look up", name)
        return 0


def tried(pool: Failing) -> str:
    return try_access(cast(Pool, pool), "space", 4096)


@pytest.mark.parametrize(
    ("codes", "kind", "calls", "named"),
    [
        ((errno.ETIMEDOUT, 0), Transient, ["write", "remove"], False),
        ((errno.ETIMEDOUT, errno.ENOENT), Transient, ["write", "remove"], False),
        ((errno.ETIMEDOUT, errno.ETIMEDOUT), Transient, ["write", "remove"], True),
        ((errno.ENOSPC,), NoSpace, ["write"], False),
        ((0, errno.EIO, 0), Corrupt, ["write", "read", "remove"], False),
        ((0, errno.EIO, errno.ETIMEDOUT), Corrupt, ["write", "read", "remove"], True),
        ((0, 0, 0), Corrupt, ["write", "read", "remove"], False),
        ((errno.EPERM, errno.EPERM), ConfigError, ["write", "look up"], False),
    ],
)
def test_a_probe_that_fails(codes: Sequence[int], kind: type[NosError], calls: list[str], named: bool) -> None:
    pool = Failing(*codes, reads=b"something else")
    with pytest.raises(kind) as error:
        tried(pool)
    assert pool.calls == calls
    assert ("rados -p blocks -N space rm nos_ec.probe." in str(error.value)) is named


def test_a_user_that_may_only_read() -> None:
    assert tried(Failing(errno.EPERM, errno.ENOENT)) == "the user may only read"
    assert tried(Failing(errno.EACCES, 0)) == "the user may only read"
