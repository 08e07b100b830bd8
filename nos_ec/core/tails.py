"""Tails of large objects (docs/adr/0027).

A large object fills whole stripes of blocks of its own. The bytes after the last whole stripe are its tail: a small
object in a hidden bucket. The key of the tail contains the id of the last block of the large object. So the segments of
a large object show whether it has a tail (they sum to less than its size), and which one. A tail lives while that block
does: it is recorded while the block is OPEN, and GC deletes it before it deletes the block.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nos_ec.core.ids import ACCESS_BUCKET, JOURNAL_BUCKET, LOCKS_BUCKET, BlockId, ObjectKey
from nos_ec.core.parts import PARTS_BUCKET

TAILS_BUCKET = ".nos_ec.tails."
"""Prefix of the names of the buckets of tails. The last hexadecimal digit of the block id follows: 16 buckets, so that
producers and consumers share the tails."""
PADDING_SHARE = 16
"""No tail is cut if the padding would be at most one part in this many of a stripe: a tail costs a row, and headers."""
HIDDEN_BUCKETS = (PARTS_BUCKET, TAILS_BUCKET, ACCESS_BUCKET, JOURNAL_BUCKET, LOCKS_BUCKET)
"""Prefixes of the names of buckets that listings of buckets leave out."""

_BLOCK = re.compile("[0-9a-f]{32}")


def tail_length(front: int, length: int, stripe_size: int) -> int:
    """Return how many bytes to cut off a block that holds `front` bytes of header and names and `length` bytes of data:
    those after the last whole stripe. 0 if the padding is small, or the block has no whole stripe: the block must
    exist, because its header and names describe the object."""
    whole, rest = divmod(front + length, stripe_size)
    padding = stripe_size - rest
    return rest if whole and rest and padding * PADDING_SHARE > stripe_size else 0


def tail_key(last: BlockId) -> ObjectKey:
    """Return the key of the tail of the large object with this last block."""
    name = last.hex()
    return ObjectKey(TAILS_BUCKET + name[-1], name)


def tail_place(size: int, segments: Sequence[tuple[BlockId, int]]) -> tuple[ObjectKey, int] | None:
    """Return the key of the tail of a large object of `size` bytes, and the bytes of the tail; None without one.
    `segments` has the block and length of each segment, in order."""
    rest = size - sum(length for _, length in segments)
    return (tail_key(segments[-1][0]), rest) if segments and rest > 0 else None


def is_tail(key: ObjectKey) -> bool:
    """Return whether the object is a tail."""
    return key.bucket.startswith(TAILS_BUCKET)


def block_of_tail(key: ObjectKey) -> BlockId | None:
    """Return the block whose lifetime a tail shares, or None for an object that is not a tail."""
    if not is_tail(key) or not _BLOCK.fullmatch(key.name):
        return None
    return BlockId(bytes.fromhex(key.name))


def hidden_prefix(bucket: str) -> str | None:
    """Return the prefix of the name of a hidden bucket, or None for a bucket that is not hidden."""
    return next((prefix for prefix in HIDDEN_BUCKETS if bucket.startswith(prefix)), None)
