"""boto3."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.rig.s3_programs.files import files, same, write_files

ONE_PIECE = TransferConfig(multipart_threshold=5 << 30)
NOTES = {"colour": "red", "owner": "a b"}


def client_of(url: str) -> Any:
    """A client as users make it, of a region whose URLs it signs with Signature Version 4."""
    config = Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=url, region_name="eu-north-1", config=config)


def fetch(client: Any, bucket: str, name: str, **arguments: Any) -> bytes:
    """The bytes of a GET."""
    data: bytes = client.get_object(Bucket=bucket, Key=name, **arguments)["Body"].read()
    return data


def listed(client: Any, bucket: str, **arguments: Any) -> list[str]:
    """All names, in pages of three."""
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": 3}, **arguments
    )
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def status_of(call: Any, **arguments: Any) -> int:
    """The status of a call that is refused."""
    try:
        call(**arguments)
    except ClientError as error:
        return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    raise AssertionError("it was not refused")


def main(write_url: str, read_url: str, bucket: str) -> None:
    """Everything. Raises AssertionError."""
    write, read = client_of(write_url), client_of(read_url)
    wanted = dict(files())
    write.create_bucket(Bucket=bucket)
    read.head_bucket(Bucket=bucket)
    _put(write, bucket, wanted)
    same({name: fetch(read, bucket, name) for name in wanted}, wanted)
    assert listed(read, bucket) == sorted(wanted, key=str.encode)
    folders = read.list_objects_v2(Bucket=bucket, Delimiter="/")["CommonPrefixes"]
    assert folders == [{"Prefix": "nested/"}]
    _ranges(read, bucket, wanted)
    _metadata_and_copies(write, read, bucket, wanted)
    _conditions(write, read, bucket)
    _presigned(write, read, bucket)
    _deletes(write, read, bucket)


def _put(write: Any, bucket: str, wanted: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), wanted)
        for number, name in enumerate(wanted):
            if number % 2:
                write.put_object(Bucket=bucket, Key=name, Body=wanted[name])
            else:
                write.upload_file(str(Path(folder) / name), bucket, name, Config=ONE_PIECE)


def _ranges(read: Any, bucket: str, wanted: dict[str, bytes]) -> None:
    name, data = "one-mib.bin", wanted["one-mib.bin"]
    last = len(data) - 1
    for header, part in {
        "bytes=0-0": data[:1],
        "bytes=4095-4097": data[4095:4098],
        "bytes=1000000-": data[1_000_000:],
        "bytes=-10": data[-10:],
        f"bytes={last}-{last + 10}": data[-1:],
    }.items():
        assert fetch(read, bucket, name, Range=header) == part, header
    assert status_of(read.get_object, Bucket=bucket, Key=name, Range=f"bytes={last + 1}-") == 416
    assert status_of(read.get_object, Bucket=bucket, Key="empty", Range="bytes=0-") == 416


def _metadata_and_copies(write: Any, read: Any, bucket: str, wanted: dict[str, bytes]) -> None:
    name = "with space and  two.txt"
    write.put_object(Bucket=bucket, Key=name, Body=wanted[name], Metadata=NOTES, ContentType="text/plain")
    copied = "copies/+ ü%.txt"
    write.copy_object(Bucket=bucket, Key=copied, CopySource={"Bucket": bucket, "Key": name})
    for one in (name, copied):
        head = read.head_object(Bucket=bucket, Key=one)
        assert (head["Metadata"], head["ContentType"]) == (NOTES, "text/plain"), head
        assert fetch(read, bucket, one) == wanted[name]
    source = {"Bucket": bucket, "Key": copied}
    write.copy_object(Bucket=bucket, Key=copied, CopySource=source, Metadata={"b": "2"}, MetadataDirective="REPLACE")
    assert read.head_object(Bucket=bucket, Key=copied)["Metadata"] == {"b": "2"}
    tags = [{"Key": "a b", "Value": "c+d"}]
    write.put_object_tagging(Bucket=bucket, Key=copied, Tagging={"TagSet": tags})
    assert read.get_object_tagging(Bucket=bucket, Key=copied)["TagSet"] == tags


def _conditions(write: Any, read: Any, bucket: str) -> None:
    once = {"Bucket": bucket, "Key": "once"}
    first = write.put_object(**once, Body=b"1", IfNoneMatch="*")
    assert status_of(read.put_object, **once, Body=b"2", IfNoneMatch="*") == 412
    assert read.get_object(**once)["ETag"] == first["ETag"]
    second = read.put_object(**once, Body=b"2", IfMatch=first["ETag"])
    assert status_of(write.put_object, **once, Body=b"3", IfMatch=first["ETag"]) == 412
    assert write.get_object(**once)["ETag"] == second["ETag"]


def _presigned(write: Any, read: Any, bucket: str) -> None:
    name = "signed/ü +%.txt"
    sent = write.generate_presigned_url("put_object", {"Bucket": bucket, "Key": name}, ExpiresIn=60)
    assert urlopen(Request(sent, b"presigned", method="PUT")).status == 200
    url = read.generate_presigned_url("get_object", {"Bucket": bucket, "Key": name}, ExpiresIn=60)
    assert urlopen(url).read() == b"presigned"
    forged = f"{url}&{urlencode({'response-content-type': 'text/html'})}"
    try:
        status = urlopen(forged).status
    except HTTPError as error:
        status = error.code
    assert status == 403


def _deletes(write: Any, read: Any, bucket: str) -> None:
    write.delete_object(Bucket=bucket, Key="small.txt")
    assert status_of(read.get_object, Bucket=bucket, Key="small.txt") == 404
    assert status_of(write.delete_bucket, Bucket=bucket) == 409
    left = listed(read, bucket)
    answer = write.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": name} for name in left]})
    assert [one["Key"] for one in answer["Deleted"]] == left
    assert listed(read, bucket) == []
    write.delete_bucket(Bucket=bucket)
    assert bucket not in [one["Name"] for one in read.list_buckets()["Buckets"]]


if __name__ == "__main__":
    main(*sys.argv[1:4])
