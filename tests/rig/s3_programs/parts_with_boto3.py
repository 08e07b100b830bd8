"""boto3, with its own threshold: parts of 8 MiB."""

from __future__ import annotations

import random
import sys
from io import BytesIO
from typing import Any

from tests.rig.s3_programs.files import MIB
from tests.rig.s3_programs.with_boto3 import client_of, fetch, listed, status_of


def main(write_url: str, read_url: str, bucket: str) -> None:
    """Everything. Raises AssertionError."""
    write, read = client_of(write_url), client_of(read_url)
    data = random.Random(22).randbytes(20 * MIB + 7)
    write.create_bucket(Bucket=bucket)
    write.upload_fileobj(BytesIO(data), bucket, "large", ExtraArgs={"Metadata": {"note": "kept"}})
    head = read.head_object(Bucket=bucket, Key="large")
    assert head["ETag"].endswith('-3"'), head["ETag"]
    assert (head["ContentLength"], head["Metadata"]) == (len(data), {"note": "kept"})
    back = BytesIO()
    read.download_fileobj(bucket, "large", back)
    assert back.getvalue() == data
    middle = 8 * MIB
    assert fetch(read, bucket, "large", Range=f"bytes={middle - 1}-{middle}") == data[middle - 1 : middle + 1]
    write.copy({"Bucket": bucket, "Key": "large"}, bucket, "copy")
    assert fetch(read, bucket, "copy") == data
    _copy_one_piece(write, read, bucket)
    _by_hand(write, read, bucket)
    for name in listed(read, bucket):
        write.delete_object(Bucket=bucket, Key=name)
    write.delete_bucket(Bucket=bucket)


def _copy_one_piece(write: Any, read: Any, bucket: str) -> None:
    """Objects that were stored in one piece. Ranges of them cross where blocks and the tail meet."""
    for size in (10_600_000, 12 * MIB + 17):
        data = random.Random(size).randbytes(size)
        write.put_object(Bucket=bucket, Key="piece", Body=data)
        write.copy({"Bucket": bucket, "Key": "piece"}, bucket, "copied piece")
        assert read.head_object(Bucket=bucket, Key="copied piece")["ETag"].endswith('-2"')
        assert fetch(read, bucket, "copied piece") == data


def _by_hand(write: Any, read: Any, bucket: str) -> None:
    """Parts that go through different gateways, an upload that is aborted, and one that is completed."""
    chance = random.Random(23)
    bodies = [chance.randbytes(5 * MIB), chance.randbytes(5 * MIB), chance.randbytes(10)]
    named = {"Bucket": bucket, "Key": "by hand"}
    aborted = write.create_multipart_upload(**named)["UploadId"]
    read.upload_part(**named, UploadId=aborted, PartNumber=1, Body=bodies[0])
    uploads = read.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [one["UploadId"] for one in uploads] == [aborted]
    write.abort_multipart_upload(**named, UploadId=aborted)
    assert "Uploads" not in read.list_multipart_uploads(Bucket=bucket)
    assert status_of(read.list_parts, **named, UploadId=aborted) == 404
    upload = write.create_multipart_upload(**named)["UploadId"]
    parts = []
    for number, body in enumerate(bodies, 1):
        client = (write, read)[number % 2]
        etag = client.upload_part(**named, UploadId=upload, PartNumber=number, Body=body)["ETag"]
        parts.append({"PartNumber": number, "ETag": etag})
    assert [one["PartNumber"] for one in read.list_parts(**named, UploadId=upload)["Parts"]] == [1, 2, 3]
    assert status_of(read.get_object, **named) == 404
    read.complete_multipart_upload(**named, UploadId=upload, MultipartUpload={"Parts": parts})
    assert fetch(write, bucket, "by hand") == b"".join(bodies)


if __name__ == "__main__":
    main(*sys.argv[1:4])
