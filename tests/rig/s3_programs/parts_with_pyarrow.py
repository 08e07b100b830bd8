"""pyarrow as it is: every file is a multipart upload. A large Parquet file has parts of 10 MiB."""

from __future__ import annotations

import sys

import pyarrow.fs
import pyarrow.parquet

from tests.rig.s3_programs.files import files, same
from tests.rig.s3_programs.with_pyarrow import file_system, read_file, table_of, write_file

ROWS = 600_000


def main(write_url: str, read_url: str, bucket: str) -> None:
    """Everything. Raises AssertionError."""
    write, read = file_system(write_url, small_in_one=False), file_system(read_url, small_in_one=False)
    write.create_dir(bucket)
    wanted = dict(files())
    for name, data in wanted.items():
        write_file(write, f"{bucket}/tree/{name}", data)
    same({name: read_file(read, f"{bucket}/tree/{name}") for name in wanted}, wanted)
    table = table_of(ROWS)
    path = f"{bucket}/large.parquet"
    pyarrow.parquet.write_table(table, path, filesystem=write, row_group_size=50_000, compression="none")
    assert read.get_file_info(path).size > 20 << 20
    assert pyarrow.parquet.read_table(path, filesystem=read).equals(table)
    column = pyarrow.parquet.read_table(path, filesystem=read, columns=["value"])
    assert column.equals(table.select(["value"]))
    write.delete_dir(bucket)
    assert read.get_file_info(bucket).type == pyarrow.fs.FileType.NotFound


if __name__ == "__main__":
    main(*sys.argv[1:4])
