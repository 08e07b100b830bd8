"""One look-up at a time, however many ask: so that those who ask of a server that is away do not queue up for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Who calls while another's `look_up` is under way gets what that one finds, or its failure, at its end.

    Name and idea are those of Go's golang.org/x/sync/singleflight.
    """

    def __init__(self, look_up: Callable[[], _T]) -> None:
        self._look_up = look_up
        self._lock = Lock()
        self._flight: Future[_T] | None = None

    @property
    def under_way(self) -> bool:
        """Whether somebody looks it up now."""
        return self._flight is not None

    def __call__(self) -> _T:
        """What is found. Raises what `look_up` raises."""
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
