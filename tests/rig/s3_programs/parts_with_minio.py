"""minio, with parts of 5 MiB."""

from __future__ import annotations

import random
import sys
from io import BytesIO

from tests.rig.s3_programs.files import MIB
from tests.rig.s3_programs.with_minio import client_of, fetch, listed


def main(write_url: str, read_url: str, bucket: str) -> None:
    """Everything. Raises AssertionError."""
    write, read = client_of(write_url), client_of(read_url)
    data = random.Random(24).randbytes(20 * MIB + 7)
    write.make_bucket(bucket)
    write.put_object(bucket, "known", BytesIO(data), len(data), part_size=5 * MIB)
    write.put_object(bucket, "unknown", BytesIO(data), -1, part_size=5 * MIB)
    for name in ("known", "unknown"):
        assert read.stat_object(bucket, name).etag.endswith("-5")
        assert fetch(read, bucket, name) == data
        assert fetch(read, bucket, name, offset=5 * MIB - 1, length=2) == data[5 * MIB - 1 : 5 * MIB + 1]
    for name in listed(read, bucket):
        write.remove_object(bucket, name)
    write.remove_bucket(bucket)


if __name__ == "__main__":
    main(*sys.argv[1:4])
