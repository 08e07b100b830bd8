"""s3fs, which uploads what is longer than a block in parts."""

from __future__ import annotations

import random
import sys

from tests.rig.s3_programs.files import MIB
from tests.rig.s3_programs.with_s3fs import file_system


def main(write_url: str, read_url: str, bucket: str) -> None:
    """Everything. Raises AssertionError."""
    write, read = file_system(write_url), file_system(read_url)
    data = random.Random(25).randbytes(20 * MIB + 7)
    write.mkdir(bucket)
    with write.open(f"{bucket}/large", "wb", block_size=5 * MIB) as file:
        for first in range(0, len(data), 700_000):
            file.write(data[first : first + 700_000])
    assert read.cat_file(f"{bucket}/large") == data
    assert read.cat_file(f"{bucket}/large", start=5 * MIB - 1, end=5 * MIB + 1) == data[5 * MIB - 1 : 5 * MIB + 1]
    with write.open(f"{bucket}/large", "ab", block_size=5 * MIB) as file:
        file.write(b"appended")
    assert read.cat_file(f"{bucket}/large") == data + b"appended"
    write.rm(bucket, recursive=True)
    assert bucket not in read.ls("", detail=False)


if __name__ == "__main__":
    main(*sys.argv[1:4])
