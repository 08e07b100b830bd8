"""Backup programs on buckets with object lock. What they delete, or somebody who stole their keys, can be restored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import or_skip
from tests.rig.s3.embedded_gateway import embedded_gateway
from tests.rig.s3.s3_clients import Gateways, back_up_with_restic, client_program, rclone_environment
from tests.rig.s3.s3_gateway import Access, client_of
from tests.rig.s3.s3_pgbackrest import Postgres, sockets
from tests.rig.s3_programs.files import files_below, same

pytestmark = pytest.mark.real


class Locked:
    """A bucket in which each new version is locked for a day."""

    def __init__(self, access: Access, name: str) -> None:
        self.name = name
        self.client = client_of(access)
        self.client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
        rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
        locks = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        self.client.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=locks)

    def entries(self, kind: str) -> list[dict[str, Any]]:
        pages = self.client.get_paginator("list_object_versions").paginate(Bucket=self.name)
        return [entry for page in pages for entry in page.get(kind, [])]

    def refuses_deletions(self) -> None:
        """Each version, also a hidden one, can be read and not be deleted."""
        versions = self.entries("Versions")
        assert versions
        named = [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in versions]
        refused = self.client.delete_objects(Bucket=self.name, Delete={"Objects": named}).get("Errors", [])
        assert {(one["Key"], one["VersionId"]) for one in refused} == {(one["Key"], one["VersionId"]) for one in named}
        assert {one["Code"] for one in refused} == {"AccessDenied"}
        for one, entry in zip(named, versions, strict=True):
            assert len(self.client.get_object(Bucket=self.name, **one)["Body"].read()) == entry["Size"]

    def restore(self) -> int:
        """Remove all delete markers. Returns how many there were."""
        markers = self.entries("DeleteMarkers")
        for one in markers:
            self.client.delete_object(Bucket=self.name, Key=one["Key"], VersionId=one["VersionId"])
        return len(markers)

    def go_back(self, key: str, text: str) -> None:
        """Store the newest version that has this text once more, so that it is the current one."""
        for one in self.entries("Versions"):
            source = {"Key": one["Key"], "VersionId": one["VersionId"]}
            if key == one["Key"] and text in self.client.get_object(Bucket=self.name, **source)["Body"].read().decode():
                self.client.copy_object(Bucket=self.name, Key=key, CopySource={"Bucket": self.name, **source})
                return
        raise AssertionError(f"no version of {key} has {text}")


@pytest.fixture
def locked(s3_access: Access, tmp_path: Path) -> Locked:
    return Locked(s3_access, f"locked-{tmp_path.name.replace('_', '-').lower()}"[:63].rstrip("-"))


def test_restic_prunes_a_locked_bucket_and_loses_nothing(s3_access: Access, locked: Locked, tmp_path: Path) -> None:
    """Its deletions add delete markers, so an attacker with its key cannot destroy a backup."""
    gateways = Gateways(s3_access, s3_access, tmp_path)
    or_skip(lambda: back_up_with_restic(gateways, locked.name, {}))
    locked.refuses_deletions()
    more = {"RESTIC_REPOSITORY": f"s3:{s3_access.url}/{locked.name}/repository", "RESTIC_PASSWORD": "secret"}

    def snapshots() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(gateways.run("restic", "--no-cache", "--json", "snapshots", more=more))
        return sorted(found, key=lambda one: one["time"])

    kept = snapshots()
    assert locked.restore() > 1
    gateways.run("restic", "--no-cache", "unlock", "--remove-all", more=more)  # its own lock files are back, too
    oldest, *others = snapshots()
    assert [one["id"] for one in others] == [one["id"] for one in kept]
    gateways.run("restic", "--no-cache", "check", "--read-data", more=more)
    gateways.run("restic", "--no-cache", "restore", oldest["id"], "--target", "again", more=more)
    same(files_below(next((tmp_path / "again").rglob("there"))), files_below(next((tmp_path / "old").rglob("there"))))


def test_rclone_syncs_to_a_locked_bucket(s3_access: Access, locked: Locked, tmp_path: Path) -> None:
    gateways = Gateways(s3_access, s3_access, tmp_path)
    wanted, environment = gateways.tree(), rclone_environment(gateways)
    (tmp_path / "rclone.conf").touch()

    def rclone(*arguments: str) -> bytes:
        return gateways.run("rclone", "--retries", "1", *arguments, more=environment)

    or_skip(lambda: rclone("sync", "there", f"w:{locked.name}"))
    (tmp_path / "there/small.txt").write_bytes(b"changed")
    (tmp_path / "there/one").unlink()
    rclone("sync", "there", f"w:{locked.name}")
    rclone("check", "--download", "there", f"w:{locked.name}")
    rclone("delete", f"w:{locked.name}")
    assert rclone("lsf", "-R", "--files-only", f"w:{locked.name}") == b""
    locked.refuses_deletions()
    assert locked.restore() == len(wanted)
    rclone("copy", f"w:{locked.name}", "back")
    same(files_below(tmp_path / "back"), wanted | {"small.txt": b"changed"})


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    """A server that is created but does not run, and a gateway over HTTPS: pgBackRest uses nothing else."""
    or_skip(lambda: client_program("postgres"))
    (tmp_path / "store").mkdir()
    with embedded_gateway(tmp_path / "store", secure=True) as access, sockets() as folder:
        server = Postgres(Gateways(access, access, tmp_path), "locked", tmp_path / "data", folder)
        server.create()
        yield server


ROWS = "SELECT count(*), md5(string_agg(key || note, ',' ORDER BY key)) FROM kept"


def test_pgbackrest_expires_in_a_locked_bucket_and_loses_nothing(postgres: Postgres, tmp_path: Path) -> None:
    """A backup that has expired can be restored, too, with the log that it needs."""
    locked = Locked(postgres.gateways.write, postgres.bucket)

    def back_up(kind: str) -> str:
        postgres.pgbackrest("backup", f"--type={kind}")
        return labels()[-1]

    def labels() -> list[str]:
        (stanza,) = json.loads(postgres.pgbackrest("info", "--output=json"))
        return [one["label"] for one in stanza["backup"]]

    def rows_of(restored: Postgres, *arguments: str) -> str:
        restored.pgbackrest("restore", "--archive-mode=off", *arguments)
        with restored.serve():
            return restored.sql(ROWS)

    with postgres.serve():
        postgres.drop_templates()
        postgres.pgbackrest("stanza-create")
        postgres.sql("CREATE TABLE kept AS SELECT key, md5(key::text) AS note FROM generate_series(1, 20000) key")
        full = back_up("full")
        postgres.sql("UPDATE kept SET note = 'changed' WHERE key % 7 = 0")
        expired, rows_of_expired = back_up("diff"), postgres.sql(ROWS)
        postgres.sql("DELETE FROM kept WHERE key % 5 = 0")
        kept = [full, back_up("diff")]
        assert labels() == kept, "it has expired the backup in between"
        postgres.sql("INSERT INTO kept SELECT key, 'new' FROM generate_series(20001, 20100) key")
        rows = postgres.sql(ROWS)
        postgres.pgbackrest("check")  # archives the log
    postgres.pgbackrest("stop")
    postgres.pgbackrest("stanza-delete", "--force")
    assert "Contents" not in locked.client.list_objects_v2(Bucket=locked.name)
    locked.refuses_deletions()
    assert locked.restore() > 10
    postgres.pgbackrest("start")
    assert labels() == kept
    assert "status: ok" in postgres.pgbackrest("verify", "--output=text", "--verbose").splitlines()
    assert rows_of(replace(postgres, data=tmp_path / "again")) == rows
    locked.go_back("repository/backup/main/backup.info", expired)
    before = replace(postgres, data=tmp_path / "before")
    assert rows_of(before, f"--set={expired}", "--type=immediate", "--target-action=promote") == rows_of_expired
