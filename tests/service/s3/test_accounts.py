"""`nos-ec s3`: access keys, buckets and grants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nos_ec.core.ids import RESERVED_BUCKET
from nos_ec.core.locking.lock_note import note_buckets
from nos_ec.core.tails import HIDDEN_BUCKETS
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.s3.errors import S3Error
from nos_ec.s3.names import check_new_bucket
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CONFIG, Bench

OLD, NEW = "12" * 32, "34" * 32


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


@pytest.fixture
def master(bench: Bench) -> Path:
    """The file with the master key, which the settings name."""
    file = bench.folder / "master"
    file.write_text(OLD)
    file.chmod(0o600)
    bench.config.write_text(CONFIG + f'[s3]\nmaster_key_file = "{file}"\n')
    return file


def told(cli: Cli, *arguments: str) -> Any:
    return cli("s3", *arguments)


def refused(cli: Cli, exits: int, *arguments: str) -> str:
    """The message of a command that ends with this exit code."""
    message: str = cli("s3", *arguments, exits=exits)["message"]
    return message


def secret_of(bench: Bench, access_key: str, *masters: str) -> str:
    """The secret as a gateway with these master keys reads it."""
    with bench.open() as system:
        key = system.metadata.access_key(access_key)
    assert key is not None
    return MasterKeys(masters).open(access_key, key.secret)


@pytest.mark.usefixtures("master")
def test_life_of_an_access_key(bench: Bench, cli: Cli) -> None:
    assert "no access keys" in cli.text("s3", "key", "list")
    made = told(cli, "key", "create", "ann", "--note", "höst 7")
    name = str(made["access_key"])
    assert (len(name), len(str(made["secret"]))) == (20, 40)
    assert secret_of(bench, name, OLD) == made.pop("secret")
    assert (made["account"], made["state"], made["note"]) == ("ann", "active", "höst 7")
    assert told(cli, "key", "list") == {"keys": [made]}
    assert name in cli.text("s3", "key", "list")
    assert told(cli, "key", "disable", name) == {"access_key": name, "state": "disabled"}
    assert told(cli, "key", "list") == {"keys": [made | {"state": "disabled"}]}
    assert told(cli, "key", "enable", name)["state"] == "active"
    cli("s3", "key", "disable", name)
    rotated = told(cli, "key", "rotate", name)
    assert secret_of(bench, name, OLD) == rotated.pop("secret")
    assert rotated == made
    assert told(cli, "key", "remove", name) == {"removed": name}
    for command in ("remove", "rotate", "disable", "enable"):
        assert "does not exist" in refused(cli, 4, "key", command, name)


@pytest.mark.usefixtures("master")
def test_a_key_of_another_store_goes_on(bench: Bench, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("wJalrXUtnFEMI/K7MDENG+bPxRfi\n")
    given = ["key", "create", "ann", "--access-key", "AKIDEXAMPLE", "--secret-file", str(file)]
    assert "not shown again" in cli.text("s3", *given)
    assert secret_of(bench, "AKIDEXAMPLE", OLD) == "wJalrXUtnFEMI/K7MDENG+bPxRfi"
    assert "already exists" in refused(cli, 5, *given)
    file.write_text("short")
    for wrong in (["--access-key", "a/b"], ["--secret-file", str(file)], ["--secret-file", str(tmp_path / "none")]):
        refused(cli, 2, "key", "create", "ann", *wrong)
    for account in ("", "a b", "a/b", "ä", "x" * 65):
        assert "is not a valid account" in refused(cli, 2, "key", "create", account)
    assert "the maximum is 255" in refused(cli, 2, "key", "create", "ann", "--note", "x" * 256)


@pytest.mark.usefixtures("master")
def test_keys_that_encrypt_objects(bench: Bench, cli: Cli) -> None:
    assert told(cli, "encryption-key", "add") == {"number": 1}
    assert "key 2 encrypts new objects" in cli.text("s3", "encryption-key", "add")
    assert "of the KMS key photos" in cli.text("s3", "encryption-key", "add", "--kms-key", "photos")
    assert "is not the name of a KMS key" in refused(cli, 2, "encryption-key", "add", "--kms-key", "a b")
    assert told(cli, "key", "list") == {"keys": []}
    with bench.open() as system:
        ring = KeyRing(system.metadata, MasterKeys([OLD]), system.clock)
        newest = ring.newest()
        assert newest is not None
        assert newest[0] == 2
        assert len({ring.key(1), newest[1], bytes(32)}) == 3


def test_a_new_master_key(bench: Bench, cli: Cli, master: Path) -> None:
    made = [told(cli, "key", "create", "ann") for _ in range(3)]
    cli("s3", "key", "disable", str(made[0]["access_key"]))
    master.write_text(f"{NEW}\n{OLD}\n")
    made.append(told(cli, "key", "create", "bob"))
    assert told(cli, "key", "reencrypt") == {"encrypted": 3}
    assert told(cli, "key", "reencrypt") == {"encrypted": 0}
    master.write_text(NEW)
    for one in made:
        assert secret_of(bench, str(one["access_key"]), NEW) == one["secret"]
    states = {key["access_key"]: key["state"] for key in told(cli, "key", "list")["keys"]}
    assert states.pop(made[0]["access_key"]) == "disabled"
    assert set(states.values()) == {"active"}
    master.write_text("56" * 32)
    assert "another master key" in refused(cli, 3, "key", "reencrypt")


def test_without_a_master_key(cli: Cli) -> None:
    assert "master_key_file" in refused(cli, 3, "key", "create", "ann")
    assert "no access keys" in cli.text("s3", "key", "list")


def test_buckets_and_grants(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"data")
    cli("put", "implicit/object", str(file))
    made = told(cli, "bucket", "create", "photos", "--owner", "ann")
    assert (made["bucket"], made["owner"], made["acl"], made["grants"]) == ("photos", "ann", "private", {})
    assert told(cli, "bucket", "create", "photos", "--owner", "ann") == made
    assert "belongs to ann" in refused(cli, 2, "bucket", "create", "photos")
    assert "belongs to root" in refused(cli, 2, "bucket", "create", "implicit", "--owner", "ann")
    assert told(cli, "grant", "photos", "bob", "list,read")["rights"] == ["read", "list"]
    assert told(cli, "grant", "implicit", "ann", "owner")["rights"] == ["owner"]
    assert told(cli, "bucket", "list", "--owner", "ann") == {"buckets": [made | {"grants": {"bob": ["read", "list"]}}]}
    (implicit,) = told(cli, "bucket", "list", "--owner", "root")["buckets"]
    assert [one["bucket"] for one in told(cli, "bucket", "list")["buckets"]] == ["implicit", "photos"]
    assert (implicit["bucket"], implicit["owner"], implicit["grants"]) == ("implicit", "root", {"ann": ["owner"]})
    assert "bob: read,list" in cli.text("s3", "bucket", "list", "--owner", "ann")
    assert "nothing" in cli.text("s3", "grant", "photos", "bob", "none")
    assert told(cli, "bucket", "list", "--owner", "ann") == {"buckets": [made]}
    assert "bob has no buckets" in cli.text("s3", "bucket", "list", "--owner", "bob")
    assert told(cli, "bucket", "give", "implicit", "ann") == {"bucket": "implicit", "owner": "ann"}
    given, _ = told(cli, "bucket", "list", "--owner", "ann")["buckets"]
    assert (given["bucket"], given["grants"]) == ("implicit", {}), "an owner needs no grant"
    for words in (("grant", "none", "bob", "read"), ("bucket", "give", "none", "bob")):
        assert "does not exist" in refused(cli, 4, *words)
    assert "is not a valid account" in refused(cli, 2, "bucket", "give", "photos", "a b")
    assert "is not a right" in refused(cli, 2, "grant", "photos", "bob", "read,fly")
    for wrong in ("", "a/b", ".nos_ec", "x" * 256, "ab", "Abc", "a_b", "xn--abc"):
        assert "has 3 to 63 lower-case letters" in refused(cli, 2, "bucket", "create", wrong)


@pytest.mark.usefixtures("master")
def test_sessions_of_an_account_are_ended(bench: Bench, cli: Cli) -> None:
    name = str(told(cli, "key", "create", "ann")["access_key"])
    told(cli, "key", "create", "bob")

    def generations() -> dict[str, bytes]:
        with bench.open() as system:
            return {key.account: key.generation for key in system.metadata.access_keys("", 10)}

    before = generations()
    assert told(cli, "key", "end-sessions", "ann") == {"account": "ann", "access_keys": 1}
    after = generations()
    assert (after["ann"] != before["ann"], after["bob"] == before["bob"]) == (True, True)
    assert "access keys: 1" in cli.text("s3", "key", "end-sessions", "ann")
    refused(cli, 2, "key", "end-sessions", "not valid")
    told(cli, "key", "rotate", name)
    assert generations()["ann"] not in (before["ann"], after["ann"])


@pytest.mark.parametrize("name", [*note_buckets()[:2], *HIDDEN_BUCKETS, RESERVED_BUCKET, f"{RESERVED_BUCKET}.other"])
def test_nobody_creates_a_hidden_bucket(bench: Bench, master: Path, cli: Cli, name: str) -> None:
    """Its owner could lift the locks of versions, or read the parts of uploads."""
    assert "cannot be the name of a bucket" in refused(cli, 2, "bucket", "create", name, "--owner", "ann")
    with pytest.raises(S3Error, match="InvalidBucketName"):
        check_new_bucket(name)
    with bench.open() as system:
        assert system.metadata.bucket(name) is None
        assert not system.metadata.bucket_records("", 10)
