"""minio, MinIO's client for Python."""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from minio import Minio
from minio.commonconfig import CopySource
from minio.deleteobjects import DeleteObject
from minio.error import S3Error

from tests.rig.s3_programs.files import files, same, write_files


def client_of(url: str) -> Any:
    """A client."""
    return Minio(
        urlsplit(url).netloc,
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        secure=False,
    )


def fetch(client: Any, bucket: str, name: str, **arguments: int) -> bytes:
    """The bytes of a GET."""
    answer = client.get_object(bucket, name, **arguments)
    try:
        data: bytes = answer.read()
        return data
    finally:
        answer.close()
        answer.release_conn()


def listed(client: Any, bucket: str) -> list[str]:
    """All names."""
    return [one.object_name for one in client.list_objects(bucket, recursive=True)]


def main(write_url: str, read_url: str, bucket: str) -> None:
    """Everything. Raises AssertionError."""
    write, read = client_of(write_url), client_of(read_url)
    wanted = dict(files())
    write.make_bucket(bucket)
    assert read.bucket_exists(bucket)
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), wanted)
        for number, (name, data) in enumerate(wanted.items()):
            if number % 2:
                write.put_object(bucket, name, BytesIO(data), len(data), metadata={"Note": f"no {number}"})
            else:
                write.fput_object(bucket, name, str(Path(folder) / name))
        read.fget_object(bucket, "one-mib.bin", str(Path(folder) / "back"))
        assert (Path(folder) / "back").read_bytes() == wanted["one-mib.bin"]
    same({name: fetch(read, bucket, name) for name in wanted}, wanted)
    assert listed(read, bucket) == sorted(wanted, key=str.encode)
    assert fetch(read, bucket, "one-mib.bin", offset=4095, length=8194) == wanted["one-mib.bin"][4095:12_289]
    assert read.stat_object(bucket, "one").metadata["x-amz-meta-note"] == "no 1"
    copied = "copies/+ ü%.txt"
    write.copy_object(bucket, copied, CopySource(bucket, "100%25 %2F%.txt"))
    assert fetch(read, bucket, copied) == wanted["100%25 %2F%.txt"]
    sent = write.presigned_put_object(bucket, "signed ü+%", expires=timedelta(minutes=1))
    assert urlopen(Request(sent, b"presigned", method="PUT")).status == 200
    assert urlopen(read.presigned_get_object(bucket, "signed ü+%")).read() == b"presigned"
    write.remove_object(bucket, copied)
    try:
        code = read.stat_object(bucket, copied).etag
    except S3Error as error:
        code = error.code
    assert code == "NoSuchKey"
    assert list(write.remove_objects(bucket, [DeleteObject(name) for name in listed(read, bucket)])) == []
    assert listed(read, bucket) == []
    write.remove_bucket(bucket)
    assert not read.bucket_exists(bucket)


if __name__ == "__main__":
    main(*sys.argv[1:4])
