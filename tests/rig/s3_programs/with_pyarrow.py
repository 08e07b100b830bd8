"""pyarrow: files, and Parquet."""

from __future__ import annotations

import random
import sys
from typing import Any
from urllib.parse import urlsplit

import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet

from tests.rig.s3_programs.files import files, same

ROWS = 20_000


def file_system(url: str, *, small_in_one: bool = True) -> Any:
    """small_in_one: files below 5 MiB without a multipart upload."""
    return pyarrow.fs.S3FileSystem(
        endpoint_override=urlsplit(url).netloc,
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
        allow_bucket_deletion=True,
        allow_delayed_open=small_in_one,
    )


def table_of(rows: int) -> Any:
    """A table of `rows` rows, which do not compress well."""
    chance = random.Random(rows)
    return pyarrow.table(
        {
            "number": list(range(rows)),
            "group": [number % 3 for number in range(rows)],
            "value": [chance.random() for _ in range(rows)],
            "text": [chance.randbytes(12).hex() for _ in range(rows)],
        }
    )


def read_file(system: Any, path: str) -> bytes:
    """All bytes."""
    with system.open_input_stream(path) as file:
        data: bytes = file.read()
        return data


def write_file(system: Any, path: str, data: bytes) -> None:
    """In one stream."""
    with system.open_output_stream(path) as file:
        file.write(data)


def main(write_url: str, read_url: str, bucket: str) -> None:
    """Everything. Raises AssertionError."""
    write, read = file_system(write_url), file_system(read_url)
    wanted = dict(files())
    write.create_dir(bucket)
    for name, data in wanted.items():
        write_file(write, f"{bucket}/tree/{name}", data)
    same({name: read_file(read, f"{bucket}/tree/{name}") for name in wanted}, wanted)
    below = read.get_file_info(pyarrow.fs.FileSelector(f"{bucket}/tree", recursive=True))
    sizes = {info.path.removeprefix(f"{bucket}/tree/"): info.size for info in below if info.is_file}
    assert sizes == {name: len(data) for name, data in wanted.items()}
    with read.open_input_file(f"{bucket}/tree/one-mib.bin") as file:
        file.seek(4095)
        assert file.read(8194) == wanted["one-mib.bin"][4095:12_289]
    write.copy_file(f"{bucket}/tree/100%25 %2F%.txt", f"{bucket}/copy +ü%.txt")
    assert read_file(read, f"{bucket}/copy +ü%.txt") == wanted["100%25 %2F%.txt"]
    _parquet(write, read, bucket)
    write.delete_file(f"{bucket}/copy +ü%.txt")
    assert read.get_file_info(f"{bucket}/copy +ü%.txt").type == pyarrow.fs.FileType.NotFound
    write.delete_dir(bucket)
    assert read.get_file_info(bucket).type == pyarrow.fs.FileType.NotFound


def _parquet(write: Any, read: Any, bucket: str) -> None:
    table = table_of(ROWS)
    pyarrow.parquet.write_table(table, f"{bucket}/one.parquet", filesystem=write, row_group_size=4000)
    assert pyarrow.parquet.read_table(f"{bucket}/one.parquet", filesystem=read).equals(table)
    column = pyarrow.parquet.read_table(f"{bucket}/one.parquet", filesystem=read, columns=["number"])
    assert column.equals(table.select(["number"]))
    pyarrow.dataset.write_dataset(
        table, f"{bucket}/set", format="parquet", filesystem=write, partitioning=["group"], partitioning_flavor="hive"
    )
    parts = pyarrow.dataset.dataset(f"{bucket}/set", format="parquet", filesystem=read, partitioning="hive")
    found = parts.to_table(columns=table.column_names).sort_by("number")
    assert found.select(["number", "value", "text"]).equals(table.select(["number", "value", "text"]))
    assert found["group"].to_pylist() == table["group"].to_pylist()


if __name__ == "__main__":
    main(*sys.argv[1:4])
