"""obstore, which is the object_store crate of Rust. boto3 stores metadata that is not ASCII, which obstore itself does
not send but must tolerate when reading."""

from __future__ import annotations

import sys
from typing import Any

import obstore  # type: ignore[import-not-found]
from obstore.exceptions import AlreadyExistsError  # type: ignore[import-not-found]
from obstore.store import S3Store  # type: ignore[import-not-found]

from tests.rig.s3_programs.files import MIB, files, same
from tests.rig.s3_programs.with_boto3 import client_of

PART_BYTES = 5 * MIB


def store_of(url: str, bucket: str) -> S3Store:
    """A store that signs with the keys of the environment."""
    options = {"allow_http": True}
    return S3Store(bucket, endpoint=url, virtual_hosted_style_request=False, client_options=options)


def fetch(store: S3Store, name: str) -> bytes:
    """Return the bytes of an object."""
    return bytes(obstore.get(store, name).bytes())


def main(write_url: str, read_url: str, bucket: str) -> None:
    """Run all checks. Raises AssertionError."""
    client = client_of(write_url)
    client.create_bucket(Bucket=bucket)
    write, read = store_of(write_url, bucket), store_of(read_url, bucket)
    wanted = dict(files())
    wanted["large.bin"] = wanted["one-mib.bin"] * 12 + b"the end"
    for name, data in wanted.items():
        obstore.put(write, name, data, chunk_size=PART_BYTES)
    obstore.copy(write, "large.bin", "copy.bin")
    wanted["copy.bin"] = wanted["large.bin"]
    same({name: fetch(read, name) for name in wanted}, wanted)
    listed = [entry for page in obstore.list(read) for entry in page]
    assert {entry["path"]: entry["size"] for entry in listed} == {name: len(data) for name, data in wanted.items()}
    for entry in listed:
        head = obstore.head(read, entry["path"])
        assert (head["last_modified"], head["e_tag"]) == (entry["last_modified"], entry["e_tag"])
    part = obstore.get_range(read, "large.bin", start=10 * MIB - 1, end=10 * MIB + 1)
    assert bytes(part) == wanted["large.bin"][10 * MIB - 1 : 10 * MIB + 1]
    _conditions(write, bucket)
    _metadata(client, read, bucket)
    for page in obstore.list(read):
        obstore.delete(write, [entry["path"] for entry in page])
    client.delete_bucket(Bucket=bucket)


def _conditions(write: S3Store, bucket: str) -> None:
    obstore.put(write, "once", b"1", mode="create", use_multipart=False)
    try:
        obstore.put(write, "once", b"2", mode="create", use_multipart=False)
    except AlreadyExistsError:
        pass
    else:
        raise AssertionError(f"{bucket}/once was stored twice")
    assert fetch(write, "once") == b"1"


def _metadata(client: Any, read: S3Store, bucket: str) -> None:
    def add(params: Any, **_: Any) -> None:
        params["headers"]["x-amz-meta-note"] = "ü, 日本語"

    client.meta.events.register("before-call.s3.PutObject", add)
    client.put_object(Bucket=bucket, Key="noted", Body=b"noted")
    found = obstore.get(read, "noted")
    assert str(found.attributes["note"]).startswith("=?utf-8?b?"), found.attributes
    assert bytes(found.bytes()) == b"noted"


if __name__ == "__main__":
    main(*sys.argv[1:4])
