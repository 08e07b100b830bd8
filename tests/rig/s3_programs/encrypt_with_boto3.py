"""boto3, which encrypts objects in parts and in one piece, and renames them."""

from __future__ import annotations

import random
import sys
from io import BytesIO
from typing import Any

from tests.rig.s3_programs.files import MIB
from tests.rig.s3_programs.with_boto3 import client_of, fetch, listed, status_of

KEY, OTHER = b"\x00" + b"k" * 30 + b"\xff", b"o" * 32
SIZES = {"small": 1000, "long": 300_000, "in parts": 20 * MIB + 7}
"""Sizes of objects, of which boto3 uploads the last one in parts of 8 MiB."""


def of_customer(key: bytes, prefix: str = "") -> dict[str, Any]:
    """The arguments of a call with a key of the customer."""
    return {f"{prefix}SSECustomerAlgorithm": "AES256", f"{prefix}SSECustomerKey": key}


def main(write_url: str, read_url: str, bucket: str) -> None:
    """Everything. Raises AssertionError."""
    write, read = client_of(write_url), client_of(read_url)
    write.create_bucket(Bucket=bucket)
    for name, size in SIZES.items():
        data = random.Random(size).randbytes(size)
        _by_store(write, read, bucket, name, data)
        _by_customer(write, read, bucket, name, data)
    assert status_of(write.put_object, Bucket=bucket, Key="x", ServerSideEncryption="aws:kms", SSEKMSKeyId="no") == 400
    for name in listed(read, bucket):
        write.delete_object(Bucket=bucket, Key=name)
    write.delete_bucket(Bucket=bucket)


def _by_store(write: Any, read: Any, bucket: str, name: str, data: bytes) -> None:
    for asked in ({"ServerSideEncryption": "AES256"}, {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "red"}):
        key = f"{asked['ServerSideEncryption']} {name}"
        write.upload_fileobj(BytesIO(data), bucket, key, ExtraArgs=asked)
        head = read.head_object(Bucket=bucket, Key=key)
        assert {one: head[one] for one in asked} == asked, head
        assert head["ContentLength"] == len(data)
        back = BytesIO()
        read.download_fileobj(bucket, key, back)
        assert back.getvalue() == data
        renamed = {"Bucket": bucket, "Key": f"renamed {key}", "RenameSource": key}
        if name == "in parts":
            assert head["ETag"].endswith('-3"'), head["ETag"]
            assert status_of(write.rename_object, **renamed) == 501
            continue
        write.rename_object(**renamed)
        assert status_of(read.head_object, Bucket=bucket, Key=key) == 404
        head = read.head_object(Bucket=bucket, Key=f"renamed {key}")
        assert {one: head[one] for one in asked} == asked, head
        assert fetch(read, bucket, f"renamed {key}", Range="bytes=5-99") == data[5:100]


def _by_customer(write: Any, read: Any, bucket: str, name: str, data: bytes) -> None:
    write.upload_fileobj(BytesIO(data), bucket, name, ExtraArgs=of_customer(KEY))
    back = BytesIO()
    read.download_fileobj(bucket, name, back, ExtraArgs=of_customer(KEY))
    assert back.getvalue() == data
    for wrong in ({}, of_customer(OTHER)):
        assert status_of(read.get_object, Bucket=bucket, Key=name, **wrong) in (400, 403)
    arguments = of_customer(KEY, "CopySource") | of_customer(OTHER)
    write.copy({"Bucket": bucket, "Key": name}, bucket, f"copied {name}", ExtraArgs=arguments)
    assert fetch(read, bucket, f"copied {name}", **of_customer(OTHER)) == data
    assert fetch(read, bucket, f"copied {name}", Range="bytes=7-70", **of_customer(OTHER)) == data[7:71]


if __name__ == "__main__":
    main(*sys.argv[1:4])
