"""s3fs, the file system of fsspec."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import s3fs

from tests.rig.s3_programs.files import files, files_below, same, write_files


def file_system(url: str) -> Any:
    """Without its caches of listings, which others' writes would not change."""
    region = {"region_name": "us-east-1"}
    return s3fs.S3FileSystem(endpoint_url=url, use_listings_cache=False, skip_instance_cache=True, client_kwargs=region)


def main(write_url: str, read_url: str, bucket: str) -> None:
    """Everything. Raises AssertionError."""
    write, read = file_system(write_url), file_system(read_url)
    wanted = dict(files())
    write.mkdir(bucket)
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder) / "there", wanted)
        write.put(f"{folder}/there/", f"{bucket}/tree/", recursive=True)
        read.get(f"{bucket}/tree/", f"{folder}/back/", recursive=True)
        same(files_below(Path(folder) / "back"), wanted)
    assert read.find(f"{bucket}/tree") == sorted(f"{bucket}/tree/{name}" for name in wanted)
    assert sorted(read.ls(f"{bucket}/tree", detail=False)) == sorted(
        {f"{bucket}/tree/{name.partition('/')[0]}" for name in wanted}
    )
    path = f"{bucket}/tree/one-mib.bin"
    assert read.cat_file(path, start=4095, end=12_289) == wanted["one-mib.bin"][4095:12_289]
    with read.open(path, "rb", block_size=100_000) as file:
        file.seek(500_000)
        assert file.read(200_001) == wanted["one-mib.bin"][500_000:700_001]
    with write.open(f"{bucket}/a b+ü%", "wb") as file:
        file.write(b"first")
    assert read.cat_file(f"{bucket}/a b+ü%") == b"first"
    write.pipe_file(f"{bucket}/a b+ü%", b"second")
    assert read.cat_file(f"{bucket}/a b+ü%") == b"second"
    assert urlopen(read.sign(f"{bucket}/a b+ü%", expiration=60)).read() == b"second"
    write.setxattr(f"{bucket}/a b+ü%", note="kept")
    assert read.getxattr(f"{bucket}/a b+ü%", "note") == "kept"
    write.copy(f"{bucket}/tree/", f"{bucket}/copy/", recursive=True)
    copies = read.cat(read.find(f"{bucket}/copy"))
    same({name.removeprefix(f"{bucket}/copy/"): data for name, data in copies.items()}, wanted)
    write.rm(f"{bucket}/tree/small.txt")
    assert not read.exists(f"{bucket}/tree/small.txt")
    write.rm(bucket, recursive=True)
    assert bucket not in read.ls("", detail=False)


if __name__ == "__main__":
    main(*sys.argv[1:4])
