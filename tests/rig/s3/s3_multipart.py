"""The clients of s3_clients with large files and their own thresholds, so that they upload them in parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from tests.rig.s3.s3_clients import (
    Aws,
    Gateways,
    aws_of,
    back_up_with_restic,
    client_program,
    rclone_environment,
    run_program,
    s3cmd_of,
)
from tests.rig.s3.s3_gateway import client_of
from tests.rig.s3.s3_registry import registry
from tests.rig.s3_programs.files import files_below, same, write_files

LARGE_BYTES = 20 << 20
ONE_PIECE_BYTES = 10_600_000
"""More than one part of aws and boto3."""
LAYER_BYTES = (40 << 20) + 12_345
"""More than Docker's registry copies in one piece."""
CONTENTS = {"large ü+%.bin": LARGE_BYTES, "sub/larger.bin": LARGE_BYTES + 12_345}


def large_files() -> Mapping[str, bytes]:
    """Contents by name. Each client uploads them in two parts or more."""
    chance = random.Random(21)
    return {name: chance.randbytes(size) for name, size in CONTENTS.items()}


def _written(gateways: Gateways) -> Mapping[str, bytes]:
    contents = large_files()
    write_files(gateways.folder / "there", contents)
    return contents


def use_aws(gateways: Gateways) -> None:
    """aws s3, with parts of 8 MiB."""
    write, read = aws_of(gateways, "")
    wanted = _written(gateways)
    write("s3", "mb", "s3://parts-aws")
    write("s3", "sync", "there", "s3://parts-aws/tree")
    write("s3", "cp", "--recursive", "s3://parts-aws/tree", "s3://parts-aws/copy")
    for name in ("tree", "copy"):
        read("s3", "sync", f"s3://parts-aws/{name}", f"back-{name}")
        same(files_below(gateways.folder / f"back-{name}"), wanted)
    _copy_one_piece(write, read, gateways)
    write("s3", "rb", "--force", "s3://parts-aws")


def _copy_one_piece(write: Aws, read: Aws, gateways: Gateways) -> None:
    """Copy an object that was stored in one piece. Ranges of it cross where blocks and the tail meet."""
    data = random.Random(24).randbytes(ONE_PIECE_BYTES)
    (gateways.folder / "piece").write_bytes(data)
    write("s3api", "put-object", "--bucket", "parts-aws", "--key", "piece", "--body", "piece")
    write("s3", "cp", "s3://parts-aws/piece", "s3://parts-aws/copied piece")
    assert read("s3", "cp", "s3://parts-aws/copied piece", "-") == data


def use_s3cmd(gateways: Gateways) -> None:
    """s3cmd, with parts of 15 MiB."""
    write, read = s3cmd_of(gateways)
    wanted = _written(gateways)
    write("mb", "s3://parts-s3cmd")
    write("sync", "there/", "s3://parts-s3cmd/tree/")
    read("sync", "s3://parts-s3cmd/tree/", "back/")
    same(files_below(gateways.folder / "back"), wanted)
    write("rb", "--recursive", "--force", "s3://parts-s3cmd")


def use_rclone(gateways: Gateways) -> None:
    """rclone, with parts of 5 MiB."""
    environment = rclone_environment(gateways, UPLOAD_CUTOFF="8M", CHUNK_SIZE="5M", COPY_CUTOFF="8M")
    (gateways.folder / "rclone.conf").touch()
    wanted = _written(gateways)

    def rclone(*arguments: str) -> bytes:
        return gateways.run("rclone", "--retries", "1", "--low-level-retries", "1", *arguments, more=environment)

    rclone("copy", "there", "w:parts-rclone/tree")
    rclone("copy", "w:parts-rclone/tree", "w:parts-rclone/copy")
    for name in ("tree", "copy"):
        rclone("check", "--download", "there", f"r:parts-rclone/{name}")
    first = next(iter(wanted))
    part = rclone("cat", "--offset", "5242879", "--count", "2", f"r:parts-rclone/copy/{first}")
    assert part == wanted[first][5_242_879:5_242_881], "on both sides of where two parts meet"
    rclone("purge", "w:parts-rclone")


def use_restic(gateways: Gateways) -> None:
    """restic, with packs of 16 MiB and more."""
    back_up_with_restic(gateways, "parts-restic", large_files())


def use_registry(gateways: Gateways) -> None:
    """Docker's registry: push an image with a large layer, pull it through another gateway."""
    program, bucket, layer = client_program("registry"), "parts-registry", random.Random(25).randbytes(LAYER_BYTES)
    client_of(gateways.write).create_bucket(Bucket=bucket)
    folders = {name: gateways.folder / name for name in ("push", "pull")}
    for folder in folders.values():
        folder.mkdir()
    with registry(program, gateways.write, bucket, folders["push"]) as running:
        running.push_image("some/image", "latest", layer)
    with registry(program, gateways.read, bucket, folders["pull"]) as running:
        assert running.pull_layer("some/image", "latest") == layer


def _program(name: str) -> Callable[[Gateways], None]:
    return lambda gateways: run_program(gateways, f"parts_with_{name}", f"parts-{name}")


CLIENTS: Mapping[str, Callable[[Gateways], None]] = {
    "boto3": _program("boto3"),
    "aws": use_aws,
    "s3cmd": use_s3cmd,
    "rclone": use_rclone,
    "restic": use_restic,
    "minio": _program("minio"),
    "s3fs": _program("s3fs"),
    "pyarrow": _program("pyarrow"),
    "registry": use_registry,
}
"""By name. Each uses a bucket of its own, and keeps its files in the gateways' folder."""
