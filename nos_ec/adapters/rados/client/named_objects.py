"""Objects that are named by an id in hexadecimal, some with a prefix, and the meaning of failures on them. Used by
block store, landing store and landing log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

from nos_ec.adapters.rados.client import steps
from nos_ec.adapters.rados.client.failures import port_error
from nos_ec.adapters.rados.client.pool import Pool
from nos_ec.core.errors import NosError, NotFound, Transient
from nos_ec.core.ids import BlockId, LandingId
from nos_ec.ports.clock import Beat

E = TypeVar("E", bound=NosError)
Kind = Literal["block", "landing copy", "segment"]

_NAMES = {"block": ("", 16), "landing copy": ("", 16), "segment": ("log.", 8)}
"""The prefix of the names of each kind, and the number of bytes of the id that follows."""


def object_name(kind: Kind, object_id: bytes) -> str:
    """Return the name of the object with this id."""
    return _NAMES[kind][0] + object_id.hex()


class NamedObjects:
    """The objects of one kind in a pool. `kind` is also their name in messages."""

    def __init__(self, pool: Pool, kind: Kind) -> None:
        self._pool = pool
        self._kind = kind
        prefix, id_bytes = _NAMES[kind]
        self._name = re.compile(f"{re.escape(prefix)}([0-9a-f]{{{2 * id_bytes}}})")

    def name_of(self, object_id: bytes) -> str:
        """Return the name of the object with this id."""
        return object_name(self._kind, object_id)

    def all_ids(self) -> Iterator[bytes]:
        """Yields the id of every object. Objects with other names are skipped. Raises the errors of `port_error`."""
        try:
            for name in self._pool.names():
                if match := self._name.fullmatch(name):
                    yield bytes.fromhex(match[1])
        except OSError as error:
            raise port_error(f"listing Ceph pool {self._pool.name}", error) from error

    def delete(self, object_id: bytes) -> None:
        """Delete an object, durably. A missing object is not an error. Raises the errors of `port_error`."""
        try:
            with self.translated(object_id):
                self._pool.write(self.name_of(object_id), steps.remove())
        except NotFound:
            return

    def delete_many(self, object_ids: Sequence[bytes], beat: Beat) -> dict[bytes, Transient]:
        """Delete objects, several at a time. Returns the objects that may still exist, each with the reason. Raises
        ConfigError when the user lacks the caps or the pool is gone."""
        names = {self.name_of(object_id): object_id for object_id in object_ids}
        failed: dict[bytes, Transient] = {}
        for name, error in self._pool.remove_many(list(names), beat).items():
            translated = self.failure(names[name], error)
            if not isinstance(translated, Transient):
                raise translated from error
            failed[names[name]] = translated
        return failed

    def allocated_bytes(self) -> int:
        """Return the bytes allocated on all OSDs for the whole pool, including other namespaces. The figure is some
        seconds old."""
        try:
            return self._pool.allocated_bytes()
        except OSError as error:
            raise port_error(f"Ceph pool {self._pool.name}", error) from error

    @contextmanager
    def translated(self, object_id: bytes) -> Iterator[None]:
        """Raise NotFound, or the error of `port_error`, for an OSError of an operation on this object."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._naming(object_id, NotFound(f"{self._kind} {object_id.hex()} does not exist")) from error
        except OSError as error:
            raise self.failure(object_id, error) from error

    def failure(self, object_id: bytes, error: OSError) -> NosError:
        """Return the port's error for an OSError on this object."""
        failure = port_error(f"{self._kind} {object_id.hex()} in Ceph pool {self._pool.name}", error)
        return self._naming(object_id, failure)

    def _naming(self, object_id: bytes, failure: E) -> E:
        if self._kind == "block":
            failure.block_id = BlockId(object_id)
        elif self._kind == "landing copy":
            failure.landing_id = LandingId(object_id)
        return failure
