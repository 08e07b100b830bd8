"""Wrappers that make a port fail on demand, either before a call has done anything, or after it has done all its work,
as if the answer were lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Faults:
    """The calls that are to fail, by method name. Several threads may call the failing methods."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.before: dict[str, list[Exception]] = defaultdict(list)
        """The errors to raise instead of calling the method, in this order."""
        self.after: dict[str, list[Exception]] = defaultdict(list)
        """The errors to raise after the method has done its work, as if the answer were lost."""
        self.calls: dict[str, int] = defaultdict(int)
        self.hook: Callable[[str], None] = lambda name: None
        """Called with the method's name before each call."""

    def counted(self, name: str) -> None:
        """Count one more call of the method."""
        with self._lock:
            self.calls[name] += 1

    def next_of(self, errors: list[Exception]) -> Exception | None:
        """Take the first of the remaining errors, so that no other thread gets it."""
        with self._lock:
            return errors.pop(0) if errors else None


def faulty(port: T, faults: Faults) -> T:
    """Wrap `port` so that its methods fail as `faults` says."""
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
            faults.counted(name)
            faults.hook(name)
            if (error := faults.next_of(faults.before[name])) is not None:
                raise error
            result = method(*arguments, **named)
            if (error := faults.next_of(faults.after[name])) is not None:
                raise error
            return result

        return call
