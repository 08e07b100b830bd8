"""Real S3 clients, each of which uses a store through two gateways: it writes to one, reads from the other, and all
bytes are compared."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

from tests.rig.dev_servers import MISSING, SCRIPTS, START_S_MAX, ServerFailed, ServerMissing
from tests.rig.programs import need_program
from tests.rig.s3.s3_gateway import Access, as_environment, client_of
from tests.rig.s3_programs.files import files, files_below, same, write_files

RUN_S_MAX = 120
REPOSITORY = SCRIPTS.parents[1]
PROGRAMS = Path(__file__).parents[1] / "s3_programs"
ONE_PIECE = "5G"
"""A threshold of multipart uploads that no file here reaches."""


@cache
def client_program(kind: str) -> Path:
    """The program that s3_clients.sh prints for this kind, installed if need be. Raises ServerMissing, ServerFailed."""
    command = [str(SCRIPTS / "s3_clients.sh"), kind]
    ran = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=START_S_MAX, check=False)
    if ran.returncode == MISSING:
        raise ServerMissing(ran.stderr.strip())
    if ran.returncode != 0:
        raise ServerFailed(ran.stderr.strip())
    return Path(ran.stdout.strip())


def clients_python() -> Path:
    """The Python of the clients."""
    return client_program("python")


@dataclass(frozen=True, slots=True)
class Gateways:
    """Two gateways of one store, or one twice. folder: for the client's files."""

    write: Access
    read: Access
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, and a home without any configuration."""
        return {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C.UTF-8",
            "HOME": str(self.folder),
            "PYTHONPATH": str(REPOSITORY),
            **as_environment(self.write),
        }

    def run(self, *command: str | Path, more: Mapping[str, str] | None = None) -> bytes:
        """Run a command, with more environment; returns what it wrote. Raises AssertionError when it fails."""
        ran = subprocess.run(
            [*map(str, command)],
            env=self.environment | dict(more or {}),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=RUN_S_MAX,
            check=False,
        )
        said = (ran.stdout[-3000:] + ran.stderr[-3000:]).decode(errors="replace")
        assert ran.returncode == 0, f"{command}: {ran.returncode}: {said}"
        return ran.stdout

    def tree(self) -> dict[str, bytes]:
        """Files in the folder `there`. Returns their contents by name."""
        contents = dict(files())
        write_files(self.folder / "there", contents)
        return contents


def run_program(gateways: Gateways, name: str, bucket: str) -> None:
    """Run one of tests/rig/s3_programs."""
    module = f"tests.rig.s3_programs.{name}"
    gateways.run(clients_python(), "-m", module, gateways.write.url, gateways.read.url, bucket)


# --- aws ------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Aws:
    """The AWS command line, with one of the gateways."""

    gateways: Gateways
    url: str

    def __call__(self, *arguments: str) -> bytes:
        """Run a command."""
        python, configuration = clients_python(), self.gateways.folder / "aws.config"
        command = (python, python.with_name("aws"), "--endpoint-url", self.url)
        return self.gateways.run(*command, *arguments, more={"AWS_CONFIG_FILE": str(configuration)})


def aws_of(gateways: Gateways, settings: str) -> tuple[Aws, Aws]:
    """For writing and reading. settings: lines of the section `s3`."""
    (gateways.folder / "aws.config").write_text(f"[default]\ns3 =\n    addressing_style = path\n{settings}")
    return Aws(gateways, gateways.write.url), Aws(gateways, gateways.read.url)


def use_aws(gateways: Gateways) -> None:
    """aws s3 and aws s3api."""
    write, read = aws_of(gateways, f"    multipart_threshold = {ONE_PIECE}B\n")
    wanted = gateways.tree()
    write("s3", "mb", "s3://with-aws")
    write("s3", "sync", "there", "s3://with-aws/tree")
    read("s3", "sync", "s3://with-aws/tree", "back")
    same(files_below(gateways.folder / "back"), wanted)
    # A listing has the times that the GETs had, so there is nothing to load.
    assert read("s3", "sync", "--exact-timestamps", "s3://with-aws/tree", "back") == b""
    listed = read("s3", "ls", "--recursive", "s3://with-aws").decode().splitlines()
    assert sorted(line[31:] for line in listed) == sorted(f"tree/{name}" for name in wanted)
    assert read("s3", "ls", "s3://with-aws/").split() == [b"PRE", b"tree/"]
    name = "tree/a+b=c&d,e;f@g:h.txt"
    write("s3", "cp", f"s3://with-aws/{name}", "s3://with-aws/copy ü+%.txt", "--metadata-directive", "REPLACE",
          "--metadata", "note=kept", "--content-type", "text/x-note")  # fmt: skip
    head = json.loads(read("s3api", "head-object", "--bucket", "with-aws", "--key", "copy ü+%.txt"))
    assert (head["Metadata"], head["ContentType"]) == ({"note": "kept"}, "text/x-note")
    assert read("s3", "cp", "s3://with-aws/copy ü+%.txt", "-") == wanted[name.removeprefix("tree/")]
    part = ("s3api", "get-object", "--bucket", "with-aws", "--key", "tree/one-mib.bin", "--range", "bytes=4095-12288")
    read(*part, "part")
    assert (gateways.folder / "part").read_bytes() == wanted["one-mib.bin"][4095:12_289]
    (gateways.folder / "there/small.txt").write_bytes(b"changed")
    (gateways.folder / "there/one").unlink()
    write("s3", "sync", "--delete", "there", "s3://with-aws/tree")
    read("s3", "sync", "--delete", "s3://with-aws/tree", "back")
    same(files_below(gateways.folder / "back"), files_below(gateways.folder / "there"))
    write("s3", "rb", "--force", "s3://with-aws")
    assert b"with-aws" not in read("s3", "ls")
    _assume_role(gateways, write)


def _assume_role(gateways: Gateways, aws: Aws) -> None:
    """Use a profile with a role, for which the command line fetches temporary credentials itself."""
    account = json.loads(aws("sts", "get-caller-identity"))["Account"]
    with (gateways.folder / "aws.config").open("a") as config:
        config.write(f"[profile role]\nrole_arn = arn:aws:iam::{account}:role/nightly\nsource_profile = keys\n")
        config.write(f"[profile keys]\naws_access_key_id = {gateways.write.access_key}\n")
        config.write(f"aws_secret_access_key = {gateways.write.secret}\n")
    more = {"AWS_CONFIG_FILE": str(gateways.folder / "aws.config"), "AWS_ENDPOINT_URL": aws.url}
    program = clients_python().with_name("aws")
    found = gateways.run(clients_python(), program, "sts", "get-caller-identity", "--profile", "role", more=more)
    assert ":assumed-role/nightly/" in json.loads(found)["Arn"]
    gateways.run(clients_python(), program, "s3", "ls", "--profile", "role", more=more)


# --- s3cmd ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class S3cmd:
    """s3cmd, with one of the gateways."""

    gateways: Gateways
    access: Access
    options: tuple[str, ...]

    def __call__(self, *arguments: str) -> bytes:
        """Run a command."""
        python, host = clients_python(), urlsplit(self.access.url).netloc
        configuration = self.gateways.folder / f"s3cfg-{host}"
        configuration.write_text(
            f"[default]\naccess_key = {self.access.access_key}\nsecret_key = {self.access.secret}\n"
            f"host_base = {host}\nhost_bucket = {host}\nuse_https = False\nbucket_location = us-east-1\n"
            "signature_v2 = False\nguess_mime_type = False\n"
        )
        command = (python, "-W", "ignore", python.with_name("s3cmd"), "--no-progress", "-c", configuration)
        return self.gateways.run(*command, *self.options, *arguments)


def s3cmd_of(gateways: Gateways, *options: str) -> tuple[S3cmd, S3cmd]:
    """For writing and reading."""
    return S3cmd(gateways, gateways.write, options), S3cmd(gateways, gateways.read, options)


def use_s3cmd(gateways: Gateways) -> None:
    """s3cmd. Its signurl signs with Signature Version 2, which the gateway refuses."""
    write, read = s3cmd_of(gateways, "--disable-multipart")
    wanted = gateways.tree()
    write("mb", "s3://with-s3cmd")
    write("sync", "there/", "s3://with-s3cmd/tree/")
    read("sync", "s3://with-s3cmd/tree/", "back/")
    same(files_below(gateways.folder / "back"), wanted)
    listed = read("ls", "--recursive", "s3://with-s3cmd").decode().splitlines()
    assert sorted(line.partition("s3://")[2] for line in listed) == sorted(f"with-s3cmd/tree/{name}" for name in wanted)
    write("cp", "s3://with-s3cmd/tree/100%25 %2F%.txt", "s3://with-s3cmd/copy ü+%.txt")
    write("modify", "--add-header=x-amz-meta-note:kept", "s3://with-s3cmd/copy ü+%.txt")
    assert b"x-amz-meta-note: kept" in read("info", "s3://with-s3cmd/copy ü+%.txt")
    read("get", "s3://with-s3cmd/copy ü+%.txt", "copied")
    assert (gateways.folder / "copied").read_bytes() == wanted["100%25 %2F%.txt"]
    (gateways.folder / "rest").write_bytes(wanted["one-mib.bin"][:1000])
    read("get", "--continue", "s3://with-s3cmd/tree/one-mib.bin", "rest")
    assert (gateways.folder / "rest").read_bytes() == wanted["one-mib.bin"]
    (gateways.folder / "there/one").unlink()
    write("sync", "--delete-removed", "there/", "s3://with-s3cmd/tree/")
    assert b"tree/one\n" not in read("ls", "--recursive", "s3://with-s3cmd")
    write("rb", "--recursive", "--force", "s3://with-s3cmd")
    assert b"with-s3cmd" not in read("ls")


# --- rclone ---------------------------------------------------------------------------------------
def rclone_environment(gateways: Gateways, **options: str) -> dict[str, str]:
    """The remotes `w` and `r`. options: more options of both, in upper case."""
    found = {"RCLONE_CONFIG": str(gateways.folder / "rclone.conf")}
    for name, access in (("W", gateways.write), ("R", gateways.read)):
        found |= {
            f"RCLONE_CONFIG_{name}_{option}": value
            for option, value in {
                "TYPE": "s3",
                "PROVIDER": "Other",
                "ENDPOINT": access.url,
                "ACCESS_KEY_ID": access.access_key,
                "SECRET_ACCESS_KEY": access.secret,
                **options,
            }.items()
        }
    return found


def use_rclone(gateways: Gateways) -> None:
    """rclone."""
    environment = rclone_environment(gateways, UPLOAD_CUTOFF=ONE_PIECE, COPY_CUTOFF=ONE_PIECE)
    (gateways.folder / "rclone.conf").touch()
    wanted = gateways.tree()

    def rclone(*arguments: str) -> bytes:
        return gateways.run("rclone", "--retries", "1", "--low-level-retries", "1", *arguments, more=environment)

    rclone("mkdir", "w:with-rclone")
    rclone("copy", "there", "w:with-rclone/tree")
    rclone("check", "--download", "there", "r:with-rclone/tree")
    rclone("copy", "r:with-rclone/tree", "back")
    same(files_below(gateways.folder / "back"), wanted)
    listed = json.loads(rclone("lsjson", "-R", "--files-only", "r:with-rclone/tree"))
    assert {one["Path"]: one["Size"] for one in listed} == {name: len(data) for name, data in wanted.items()}
    part = rclone("cat", "--offset", "4095", "--count", "8194", "r:with-rclone/tree/one-mib.bin")
    assert part == wanted["one-mib.bin"][4095:12_289]
    rclone("copyto", "w:with-rclone/tree/100%25 %2F%.txt", "w:with-rclone/copy ü+%.txt")
    assert rclone("cat", "r:with-rclone/copy ü+%.txt") == wanted["100%25 %2F%.txt"]
    url = rclone("link", "--expire", "1m", "r:with-rclone/copy ü+%.txt").decode().strip()
    assert urlopen(url).read() == wanted["100%25 %2F%.txt"]
    (gateways.folder / "there/small.txt").write_bytes(b"changed")
    (gateways.folder / "there/one").unlink()
    rclone("sync", "there", "w:with-rclone/tree")
    rclone("check", "--download", "there", "r:with-rclone/tree")
    _use_temporary_credentials(gateways)
    rclone("purge", "w:with-rclone")
    assert b"with-rclone" not in rclone("lsd", "r:")


def _use_temporary_credentials(gateways: Gateways) -> None:
    """Read with a session token of GetSessionToken."""
    write, _ = aws_of(gateways, "")
    given = json.loads(write("sts", "get-session-token", "--duration-seconds", "900"))["Credentials"]
    environment = rclone_environment(
        gateways,
        ACCESS_KEY_ID=given["AccessKeyId"],
        SECRET_ACCESS_KEY=given["SecretAccessKey"],
        SESSION_TOKEN=given["SessionToken"],
    )
    gateways.run("rclone", "--retries", "1", "check", "--download", "there", "r:with-rclone/tree", more=environment)


# --- restic ---------------------------------------------------------------------------------------
def use_restic(gateways: Gateways) -> None:
    """restic: back up, check all data, restore, forget and prune."""
    back_up_with_restic(gateways, "with-restic", {})


def back_up_with_restic(gateways: Gateways, bucket: str, further: Mapping[str, bytes]) -> None:
    """further: contents of more files, by name."""
    wanted = gateways.tree() | dict(further)
    write_files(gateways.folder / "there", further)

    def restic(access: Access, *arguments: str) -> bytes:
        repository = f"s3:{access.url}/{bucket}/repository"
        more = {"RESTIC_REPOSITORY": repository, "RESTIC_PASSWORD": "secret"}
        return gateways.run("restic", "--no-cache", "--quiet", *arguments, more=more)

    write, read = gateways.write, gateways.read
    restic(write, "init")
    said = restic(write, "backup", "--json", "there")
    oldest = json.loads(said.splitlines()[-1])["snapshot_id"]
    restic(read, "check", "--read-data")
    (gateways.folder / "there/small.txt").write_bytes(b"changed")
    (gateways.folder / "there/one-mib.bin").unlink()
    restic(read, "backup", "there")
    restic(write, "restore", oldest, "--target", "old")
    same(files_below(next((gateways.folder / "old").rglob("there"))), wanted)
    restic(write, "forget", "--keep-last", "1", "--prune")
    restic(read, "check", "--read-data")
    restic(read, "restore", "latest", "--target", "new")
    same(files_below(next((gateways.folder / "new").rglob("there"))), files_below(gateways.folder / "there"))


# --- Go and Java ----------------------------------------------------------------------------------
def _in_go(name: str) -> Callable[[Gateways], None]:
    """A client of tests/rig/s3_programs/go."""

    def use(gateways: Gateways) -> None:
        gateways.run(client_program("go"), name, gateways.write.url, gateways.read.url, f"with-go-{name}")

    return use


def use_java(gateways: Gateways) -> None:
    """Java's HttpClient, which offers HTTP/2 with each request. It signs nothing."""
    bucket, write, read = "with-java", client_of(gateways.write), client_of(gateways.read)
    need_program("javac")  # without a compiler, `java` runs no source file
    write.create_bucket(Bucket=bucket, ACL="public-read-write")
    gateways.run(need_program("java"), PROGRAMS / "PutAndGet.java", f"{gateways.write.url}/{bucket}")
    stored = read.list_objects_v2(Bucket=bucket)["Contents"]
    assert sorted(entry["Size"] for entry in stored) == [0, 5, 100_000, 1 << 20]
    write.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": entry["Key"]} for entry in stored]})
    read.delete_bucket(Bucket=bucket)


# --- all ------------------------------------------------------------------------------------------
def _program(name: str) -> Callable[[Gateways], None]:
    return lambda gateways: run_program(gateways, f"with_{name}", f"with-{name}")


CLIENTS: Mapping[str, Callable[[Gateways], None]] = {
    "boto3": _program("boto3"),
    "aws": use_aws,
    "s3cmd": use_s3cmd,
    "rclone": use_rclone,
    "restic": use_restic,
    "minio": _program("minio"),
    "s3fs": _program("s3fs"),
    "pyarrow": _program("pyarrow"),
    "obstore": _program("obstore"),
    "minio-go": _in_go("minio"),
    "go-sdk": _in_go("sdk"),
    "java": use_java,
}
"""By name. Each uses a bucket of its own, and keeps its files in the gateways' folder."""
