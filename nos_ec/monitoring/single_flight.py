"""Runs one look-up at a time for any number of callers, so that they do not queue up for an unavailable server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Runs `look_up` for its callers. A caller that arrives while it is running waits for it, and gets its result or
    its failure.

    The name and the idea come from Go's golang.org/x/sync/singleflight.
    """

    def __init__(self, look_up: Callable[[], _T]) -> None:
        self._look_up = look_up
        self._lock = Lock()
        self._flight: Future[_T] | None = None

    @property
    def under_way(self) -> bool:
        """Whether a look-up is running now."""
        return self._flight is not None

    def __call__(self) -> _T:
        """Return the result. Raises whatever `look_up` raises."""
        with self._lock:
            flight, joined = self._flight, self._flight is not None
            if flight is None:
                flight = self._flight = Future()
        if not joined:
            try:
                flight.set_result(self._look_up())
            except BaseException as error:
                flight.set_exception(error)
            finally:
                self._flight = None
        return flight.result()
