"""The clients of s3_clients with encryption: keys of the store, of KMS keys, and of customers, over HTTPS."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from tests.rig.s3.s3_clients import Gateways, clients_python, run_program
from tests.rig.s3.s3_gateway import client_of
from tests.rig.s3_programs.files import files_below, same, write_files

SIZES = {"small.txt": 1000, "long.bin": 300_000, "sub/larger ü+%.bin": (20 << 20) + 7}
"""Each client uploads the last one in parts."""
KEY = "k" * 32


def _written(gateways: Gateways) -> Mapping[str, bytes]:
    contents = {name: random.Random(size).randbytes(size) for name, size in SIZES.items()}
    write_files(gateways.folder / "there", contents)
    return contents


def _require_encrypted(gateways: Gateways, bucket: str, kind: str) -> None:
    """Raise AssertionError unless all objects are encrypted so."""
    client = client_of(gateways.read)
    keys = [one["Key"] for one in client.list_objects_v2(Bucket=bucket, Prefix=f"{kind}/")["Contents"]]
    assert len(keys) == len(SIZES)
    for key in keys:
        head = client.head_object(Bucket=bucket, Key=key)
        assert (head["ServerSideEncryption"], head.get("SSEKMSKeyId")) == (kind, "red" if kind == "aws:kms" else None)


def use_boto3(gateways: Gateways) -> None:
    """boto3."""
    run_program(gateways, "encrypt_with_boto3", "by-boto3")


def use_aws(gateways: Gateways) -> None:
    """The AWS command line."""
    wanted, python = _written(gateways), clients_python()

    def aws(*arguments: str) -> bytes:
        return gateways.run(python, python.with_name("aws"), "--endpoint-url", gateways.write.url, "s3", *arguments)

    aws("mb", "s3://by-aws")
    for kind, options in {"AES256": (), "aws:kms": ("--sse-kms-key-id", "red")}.items():
        aws("cp", "--recursive", "there", f"s3://by-aws/{kind}", "--sse", kind, *options)
        _require_encrypted(gateways, "by-aws", kind)
        aws("cp", "--recursive", f"s3://by-aws/{kind}", f"back-{kind}")
        same(files_below(gateways.folder / f"back-{kind}"), wanted)
    (gateways.folder / "key").write_bytes(KEY.encode())
    key = ("--sse-c", "AES256", "--sse-c-key", "fileb://key")
    aws("cp", "--recursive", "there", "s3://by-aws/customer", *key)
    aws("cp", "--recursive", "s3://by-aws/customer", "back", *key)
    same(files_below(gateways.folder / "back"), wanted)
    aws("rb", "--force", "s3://by-aws")


def use_s3cmd(gateways: Gateways) -> None:
    """s3cmd, which has no keys of customers."""
    wanted, python, host = _written(gateways), clients_python(), urlsplit(gateways.write.url).netloc
    configuration = gateways.folder / "s3cfg"
    configuration.write_text(
        f"[default]\naccess_key = {gateways.write.access_key}\nsecret_key = {gateways.write.secret}\n"
        f"host_base = {host}\nhost_bucket = {host}\nuse_https = True\nca_certs_file = {gateways.write.certificate}\n"
        "bucket_location = us-east-1\nguess_mime_type = False\nmultipart_chunk_size_mb = 5\n"
    )

    def s3cmd(*arguments: str) -> bytes:
        program = python.with_name("s3cmd")
        return gateways.run(python, "-W", "ignore", program, "--no-progress", "-c", configuration, *arguments)

    s3cmd("mb", "s3://by-s3cmd")
    sse = "--server-side-encryption"
    for kind, option in {"AES256": sse, "aws:kms": f"{sse}-kms-id=red"}.items():
        s3cmd("sync", option, "there/", f"s3://by-s3cmd/{kind}/")
        _require_encrypted(gateways, "by-s3cmd", kind)
        s3cmd("sync", f"s3://by-s3cmd/{kind}/", f"back-{kind}/")
        same(files_below(gateways.folder / f"back-{kind}"), wanted)
    s3cmd("rb", "--recursive", "--force", "s3://by-s3cmd")


CLIENTS: Mapping[str, Callable[[Gateways], None]] = {
    "boto3": use_boto3,
    "aws": use_aws,
    "s3cmd": use_s3cmd,
}
"""By name. Each uses a bucket of its own."""
