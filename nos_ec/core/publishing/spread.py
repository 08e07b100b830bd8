"""Spread: over how many partitions the events of one bucket are distributed.

All events of a bucket go to its *home* partition, which its name determines, while its spread is 1. So the bucket is
packed by one consumer at a time. With a spread of s, they go to s partitions in a row, its home first:

    partition = (home + md5high % s) % partitions

where md5high is the first half of the MD5 of `bucket/name`, big-endian, as headers contain it. (murmur2, the hash for
keys, is not used for names: in Python, it costs as much as the rest of publishing an event.)

A partition is chosen by the message key alone, as every Kafka client does it. In the home partition, the key is the
bucket. In another partition, the key is `bucket#i` with the smallest i from 1 that Kafka's default partitioner sends
there. So consumers need not know the spread, and other programs may publish with the bucket as the key, whatever the
spread is.

An event is a hint, and the commit decides by compare-and-set on the row (invariant 5). So the order of a bucket's
events does not matter, and its spread may change at any time.
"""

from __future__ import annotations

from itertools import count

from nos_ec.core.formats.messages import partition_for, partition_for_key
from nos_ec.core.ids import ObjectKey


def spread_partition(key: ObjectKey, home: int, spread: int, partitions: int) -> int:
    """Return the partition of an object's event. `home` is `partition_for(key.bucket, partitions)`. `spread` is 1 or
    more; values above `partitions` count as `partitions`."""
    spread = min(spread, partitions)
    return home if spread == 1 else (home + int.from_bytes(key.md5[:8], "big") % spread) % partitions


def message_key(bucket: str, partition: int, partitions: int) -> bytes:
    """Return the key of the events of a bucket in this partition. Hashes about `partitions` keys, unless it is the
    home.

    Raise ValueError for a partition that does not exist.
    """
    if not 0 <= partition < partitions:
        raise ValueError(f"partition {partition} of {partitions}")
    key = bucket.encode()
    if partition_for(bucket, partitions) == partition:
        return key
    return next(spread for i in count(1) if partition_for_key(spread := b"%b#%d" % (key, i), partitions) == partition)
