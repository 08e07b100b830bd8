"""The steps of a write, which `Pool.write` carries out in one transaction."""

from __future__ import annotations

from collections.abc import Callable

from nos_ec.adapters.rados.client import binding
from nos_ec.adapters.rados.client.binding import WriteOp

Buffer = bytes | bytearray | memoryview
Step = Callable[[WriteOp], None]


def must_be_new() -> Step:
    """Create the object; fail with EEXIST if it exists."""
    return lambda operation: operation.new(binding.CREATE_EXCLUSIVE)


def must_have_version(version: int) -> Step:
    """Fail with ERANGE if the object has a later version, and with EOVERFLOW if it has an earlier one or is absent."""
    return lambda operation: operation.assert_version(version)


def set_xattr(key: str, value: bytes) -> Step:
    """Set an xattr."""
    return lambda operation: operation.set_xattr(key, value)


def append(data: Buffer) -> Step:
    """Append bytes, which librados copies."""
    return lambda operation: operation.append(bytes(data))


def write(data: Buffer, offset: int) -> Step:
    """Overwrite bytes of the object's content."""
    return lambda operation: operation.write(bytes(data), offset)


def write_full(data: Buffer) -> Step:
    """Make these bytes the object's content."""
    return lambda operation: operation.write_full(bytes(data))


def remove() -> Step:
    """Remove the object; fail with ENOENT if it does not exist."""
    return lambda operation: operation.remove()
