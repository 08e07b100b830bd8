"""Wrappers that make a port fail on demand: before it did anything, or after it did it all and the answer was lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Faults:
    """What is to fail. Counts are per method name."""

    def __init__(self) -> None:
        self.before: dict[str, list[Exception]] = defaultdict(list)
        """Errors to raise instead of calling the method, first one first."""
        self.after: dict[str, list[Exception]] = defaultdict(list)
        """Errors to raise after the method has done its work: the answer is lost."""
        self.calls: dict[str, int] = defaultdict(int)
        self.hook: Callable[[str], None] = lambda name: None
        """Called with the method's name before each call."""


def faulty(port: T, faults: Faults) -> T:
    """`port`, with its methods failing as `faults` says."""
    return cast(T, _Faulty(port, faults))


class _Faulty:
    def __init__(self, port: object, faults: Faults) -> None:
        self._port = port
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            faults = self._faults
            faults.calls[name] += 1
            faults.hook(name)
            if faults.before[name]:
                raise faults.before[name].pop(0)
            result = method(*arguments, **named)
            if faults.after[name]:
                raise faults.after[name].pop(0)
            return result

        return call
