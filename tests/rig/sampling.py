"""A run of the tests does a part of what they could. `make test-all` does all of it; CONTRIBUTING.md lists what that
is."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest

IS_WHOLE = os.environ.get("NOS_EC_DEV_WHOLE", "") == "1"
TURNS = 8
TURN = int(os.environ.setdefault("NOS_EC_DEV_TURN", str(int(time.time()) // 86_400)))
"""Which eighth of the cases runs: another one every day. The processes of `pytest -n` inherit it, so that they agree
also at midnight."""

_T = TypeVar("_T")


def sampled(part: _T, whole: _T) -> _T:
    """Return `part`, or `whole` when everything was asked for (NOS_EC_DEV_WHOLE=1)."""
    return whole if IS_WHOLE else part


def of_other_turns(
    items: Iterable[pytest.Item], *, named: Collection[Path] = (), turn: int = TURN
) -> list[pytest.Item]:
    """Return the items that do not run in this turn. Each runs in one of TURNS turns, but those marked `every_time` and
    those whose file is among the named ones run always.

    Of two cases that differ by one step in one argument, at most one runs, so that a turn has variants of each kind. If
    they are in two modules or classes, these are marked `turn(0)` and `turn(1)`.
    """
    numbers = _Numbers()
    left: list[pytest.Item] = []
    for item in items:
        if item.path in named or item.get_closest_marker("every_time"):
            continue
        if not isinstance(item, pytest.Function) or item.parent is None:
            continue
        marker = item.get_closest_marker("turn")
        place = (item.parent.nodeid, item.originalname)
        number = marker.args[0] if marker else numbers.of("modules and classes", item.parent.nodeid)
        number += numbers.of(item.parent.nodeid, item.originalname)
        number += sum(numbers.of((*place, name), id(value)) for name, value in _varied(item).items())
        if (turn + number) % TURNS:
            left.append(item)
    return left


class _Numbers:
    """Numbers things of each kind from 0, in the order in which they are first asked for."""

    def __init__(self) -> None:
        self._of: defaultdict[Hashable, dict[Hashable, int]] = defaultdict(dict)

    def of(self, kind: Hashable, thing: Hashable) -> int:
        """Return the number of the thing."""
        of_kind = self._of[kind]
        return of_kind.setdefault(thing, len(of_kind))


def _varied(item: pytest.Function) -> dict[str, object]:
    """The arguments of a case, one for each parametrization."""
    arguments = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    for marker in item.iter_markers("parametrize"):
        names = marker.args[0]
        for name in (names.replace(" ", "").split(",") if isinstance(names, str) else names)[1:]:
            arguments.pop(name, None)
    return arguments
