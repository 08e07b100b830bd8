"""Common to block store and landing store: objects named by a 16-byte id in hexadecimal; what failures on them mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

from nos_ec.adapters.rados import pool as steps
from nos_ec.adapters.rados.failures import port_error
from nos_ec.adapters.rados.pool import Pool
from nos_ec.core.errors import NosError, NotFound
from nos_ec.core.ids import BlockId, LandingId

E = TypeVar("E", bound=NosError)

_NAME = re.compile("[0-9a-f]{32}")


class NamedObjects:
    """The objects of a store in `pool`. `kind` is the word for one in messages."""

    def __init__(self, pool: Pool, kind: Literal["block", "landing copy"]) -> None:
        self._pool = pool
        self._kind = kind

    def all_ids(self) -> Iterator[bytes]:
        """Yield the id of every object. Objects with other names are skipped. Raises what `port_error` returns."""
        try:
            for name in self._pool.names():
                if _NAME.fullmatch(name):
                    yield bytes.fromhex(name)
        except OSError as error:
            raise port_error(f"listing Ceph pool {self._pool.name}", error) from error

    def delete(self, object_id: bytes) -> None:
        """Delete an object, durably. A missing object is not an error. Raises what `port_error` returns."""
        try:
            with self.translated(object_id):
                self._pool.write(object_id.hex(), steps.remove())
        except NotFound:
            return

    def allocated_bytes(self) -> int:
        """The bytes allocated on all OSDs for the whole pool, including other namespaces. Some seconds old."""
        try:
            return self._pool.allocated_bytes()
        except OSError as error:
            raise port_error(f"Ceph pool {self._pool.name}", error) from error

    @contextmanager
    def translated(self, object_id: bytes) -> Iterator[None]:
        """Raise NotFound, or what `port_error` returns, for an OSError of an operation on this object."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._naming(object_id, NotFound(f"{self._kind} {object_id.hex()} does not exist")) from error
        except OSError as error:
            raise self.failure(object_id, error) from error

    def failure(self, object_id: bytes, error: OSError) -> NosError:
        """The port's error for an OSError on this object."""
        failure = port_error(f"{self._kind} {object_id.hex()} in Ceph pool {self._pool.name}", error)
        return self._naming(object_id, failure)

    def _naming(self, object_id: bytes, failure: E) -> E:
        if self._kind == "block":
            failure.block_id = BlockId(object_id)
        else:
            failure.landing_id = LandingId(object_id)
        return failure
