"""Tails of large objects (docs/adr/0027).

A large object fills whole stripes of blocks of its own. The bytes behind the last whole stripe are its tail: a small
object in a hidden bucket. Its key is made of the id of the last block of the large object, so the segments of a large
object tell whether it has a tail (they sum to less than its size), and which. A tail lives as long as that block: it is
recorded while the block is OPEN, and GC deletes it before it deletes the block.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nos_ec.core.ids import ACCESS_BUCKET, BlockId, ObjectKey
from nos_ec.core.parts import PARTS_BUCKET

TAILS_BUCKET = ".nos_ec.tails."
"""What the buckets of tails begin with. Behind it is the last hexadecimal digit of the block id: 16 buckets, so that
producers and consumers share the tails."""
PADDING_SHARE = 16
"""No tail is cut if the padding would be at most one part in so many of a stripe: a tail costs a row, and headers."""
HIDDEN_BUCKETS = (PARTS_BUCKET, TAILS_BUCKET, ACCESS_BUCKET)
"""What the names of the buckets begin with that listings of buckets pass over."""

_BLOCK = re.compile("[0-9a-f]{32}")


def tail_length(front: int, length: int, stripe_size: int) -> int:
    """Bytes to cut off a block that holds `front` bytes of header and names and `length` bytes of data: those behind
    the last whole stripe. 0 when the padding is small, or the block has no whole stripe: the block, which tells of the
    object, must be there."""
    whole, rest = divmod(front + length, stripe_size)
    padding = stripe_size - rest
    return rest if whole and rest and padding * PADDING_SHARE > stripe_size else 0


def tail_key(last: BlockId) -> ObjectKey:
    """The key of the tail of the large object whose last block this is."""
    name = last.hex()
    return ObjectKey(TAILS_BUCKET + name[-1], name)


def tail_place(size: int, segments: Sequence[tuple[BlockId, int]]) -> tuple[ObjectKey, int] | None:
    """The key of the tail of a large object of `size` bytes, and the bytes of the tail; None without one. segments:
    block and length of each segment, in order."""
    rest = size - sum(length for _, length in segments)
    return (tail_key(segments[-1][0]), rest) if segments and rest > 0 else None


def is_tail(key: ObjectKey) -> bool:
    """Whether the object is a tail."""
    return key.bucket.startswith(TAILS_BUCKET)


def block_of_tail(key: ObjectKey) -> BlockId | None:
    """The block that a tail lives as long as; None for an object that is no tail."""
    if not is_tail(key) or not _BLOCK.fullmatch(key.name):
        return None
    return BlockId(bytes.fromhex(key.name))


def hidden_prefix(bucket: str) -> str | None:
    """What the name of a hidden bucket begins with; None for a bucket that is not hidden."""
    return next((prefix for prefix in HIDDEN_BUCKETS if bucket.startswith(prefix)), None)
