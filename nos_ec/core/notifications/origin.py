"""Holds what a request reports about itself for the events that it causes.

A change passes through many layers that do not care who asked for it. So the facts are a context variable, which the
gateway and the lifecycle set around the work of a request. PUTs of several threads share a transaction, so a
`PutRequest` takes them along.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

LIFECYCLE = "s3:LifecycleExpiration"


@dataclass(frozen=True, slots=True)
class Origin:
    """Says who changes an object, and by which event.

    `event`: the name of the event if the change itself does not decide it, such as s3:ObjectCreated:Copy, or LIFECYCLE;
    empty for a change of the library. `account` is empty for an anonymous request, and `address` and `request_id` for
    a change without a request.
    """

    event: str = ""
    account: str = ""
    address: str = ""
    request_id: str = ""


_UNKNOWN = Origin()
_current: ContextVar[Origin] = ContextVar("nos_ec_origin", default=_UNKNOWN)


def current_origin() -> Origin:
    """Return the facts of the request that this thread serves; an empty Origin outside a request."""
    return _current.get()


@contextmanager
def caused_by(origin: Origin) -> Iterator[None]:
    """Make these the facts of all changes of this thread in the block."""
    token = _current.set(origin)
    try:
        yield
    finally:
        _current.reset(token)
