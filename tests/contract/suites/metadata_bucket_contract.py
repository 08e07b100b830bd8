"""Contracts of `Buckets` and `AccessKeys`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from nos_ec.core.errors import Conflict, InvalidInput
from nos_ec.core.ids import RESERVED_BUCKET, ObjectKey
from nos_ec.ports.metadata import (
    ROOT_ACCOUNT,
    AccessKey,
    AccessKeys,
    AccessOf,
    BucketRecord,
    BucketRow,
    Buckets,
    BucketState,
    CannedAcl,
    DocumentKind,
    KeyState,
    Metadata,
    Rights,
)
from nos_ec.ports.metadata.buckets import DOCUMENT_BYTES_MAX
from tests.rig.fakes.metadata_bench import MetadataBench

PRIVATE, PUBLIC = CannedAcl.PRIVATE, CannedAcl.PUBLIC_READ
DAY_MS = 86_400_000
READING = {
    "access_key",
    "access_keys",
    "bucket",
    "bucket_document",
    "bucket_documents",
    "bucket_records",
    "buckets_of",
    "documents_of",
    "grants",
}


def owned(metadata: Metadata, owner: str, limit: int = 2) -> Iterator[BucketRow]:
    """All buckets of an account, in pages of `limit`."""
    after = ""
    while True:
        page = metadata.buckets_of(owner, after, limit)
        assert len(page) <= limit
        yield from page
        if len(page) < limit:
            return
        after = page[-1].name


class BucketContract:
    """All of `Buckets`."""

    def test_a_bucket_is_created_once(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert metadata.bucket("å✓") is None
        assert metadata.create_bucket("å✓", "ann", PUBLIC, 5)
        assert metadata.bucket("å✓") == BucketRow("å✓", "ann", 5, PUBLIC)
        assert not metadata.create_bucket("å✓", "ann", PRIVATE, 6)
        assert not metadata.create_bucket("å✓", "bob", PRIVATE, 6)
        assert metadata.bucket("å✓") == BucketRow("å✓", "ann", 5, PUBLIC)

    def test_a_bucket_that_holds_an_object_exists_without_a_row(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        bench.put("n")
        assert metadata.bucket("bucket") == BucketRow("bucket", ROOT_ACCOUNT, 0, PRIVATE)
        assert not metadata.create_bucket("bucket", "ann", PRIVATE, 5)
        metadata.delete(ObjectKey("bucket", "n"), bench.now_ms)
        assert metadata.bucket("bucket") is None
        assert metadata.create_bucket("bucket", "ann", PRIVATE, 5)

    def test_a_bucket_is_deleted_when_it_is_empty(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert not metadata.delete_bucket("bucket", 1)
        metadata.create_bucket("bucket", "ann", PRIVATE, 5)
        bench.put("n")
        for _ in range(2):
            with pytest.raises(Conflict, match="delete them first"):
                metadata.delete_bucket("bucket", 6)
        metadata.delete(ObjectKey("bucket", "n"), bench.now_ms)
        assert metadata.delete_bucket("bucket", 7)
        assert metadata.bucket("bucket") is None
        assert not metadata.delete_bucket("bucket", 8)

    def test_what_is_in_the_trash_keeps_no_bucket(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        metadata.create_bucket("bucket", "ann", PRIVATE, 5)
        bench.put("n")
        metadata.delete(ObjectKey("bucket", "n"), bench.now_ms, bench.now_ms + DAY_MS)
        assert metadata.delete_bucket("bucket", 7)
        assert metadata.bucket("bucket") is None

    def test_a_bucket_without_a_row_is_not_deleted_while_it_holds_an_object(self, bench: MetadataBench) -> None:
        bench.put("n")
        with pytest.raises(Conflict):
            bench.metadata.delete_bucket("bucket", 1)

    def test_a_late_object_makes_a_deleted_bucket_exist_again(self, bench: MetadataBench) -> None:
        """Its PUT was under way when the bucket was deleted."""
        metadata = bench.metadata
        metadata.create_bucket("bucket", "ann", PUBLIC, 5)
        metadata.delete_bucket("bucket", 6)
        bench.put("late")
        assert metadata.bucket("bucket") == BucketRow("bucket", "ann", 5, PUBLIC)
        assert not metadata.create_bucket("bucket", "bob", PRIVATE, 7)
        assert list(owned(metadata, "ann")) == [BucketRow("bucket", "ann", 5, PUBLIC)]
        assert list(owned(metadata, ROOT_ACCOUNT)) == []
        with pytest.raises(Conflict):
            metadata.delete_bucket("bucket", 7)
        assert metadata.set_bucket_acl("bucket", PRIVATE, 8)
        assert metadata.bucket("bucket") == BucketRow("bucket", "ann", 5, PRIVATE)

    def test_a_deleted_bucket_can_be_created_by_another_account(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        metadata.create_bucket("bucket", "ann", PUBLIC, 5)
        metadata.set_bucket_document("bucket", DocumentKind.TAGS, b"tags", 5)
        metadata.grant("bucket", "cid", Rights.READ, 5)
        metadata.delete_bucket("bucket", 6)
        assert metadata.create_bucket("bucket", "bob", PRIVATE, 7)
        assert metadata.bucket("bucket") == BucketRow("bucket", "bob", 7, PRIVATE)
        assert metadata.bucket_document("bucket", DocumentKind.TAGS) is None
        assert metadata.grants("bucket") == {}
        assert list(owned(metadata, "ann")) == []

    def test_rows_of_deleted_buckets_are_forgotten_after_a_day(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        for name in ("one", "bucket", "other"):
            metadata.create_bucket(name, "ann", PRIVATE, 5)
            metadata.delete_bucket(name, 6)
        bench.put("late")
        metadata.create_bucket("last", "ann", PRIVATE, 7)
        metadata.delete_bucket("last", 7 + DAY_MS)
        assert [row.name for row in owned(metadata, "ann")] == ["bucket"], "its object has come late"
        metadata.delete(ObjectKey("bucket", "late"), bench.now_ms)
        assert [row.name for row in owned(metadata, "ann")] == ["bucket"], "it has a row again"

    def test_buckets_are_listed_by_owner(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        names = ["a", "b", "c", "é", "\U0001f600", "\uffee", "z"]
        for name in names:
            metadata.create_bucket(name, "ann", PRIVATE, 5)
        for name in ("b2", "y"):
            metadata.create_bucket(name, "bob", PRIVATE, 5)
        in_order = sorted(names, key=str.encode)
        for limit in (1, 2, 3, 7, 8, 100):
            assert [row.name for row in owned(metadata, "ann", limit)] == in_order
        assert [row.name for row in owned(metadata, "bob")] == ["b2", "y"]
        assert list(owned(metadata, ROOT_ACCOUNT)) == []

    def test_root_owns_the_buckets_without_a_row(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        for name in ("a", "bucket", "c", "e"):
            bench.put("n", bucket=name)
        bench.put("n", bucket=RESERVED_BUCKET)
        metadata.create_bucket("b", ROOT_ACCOUNT, PRIVATE, 5)
        metadata.create_bucket("d", "ann", PRIVATE, 5)
        bench.put("n", bucket="d")
        metadata.create_bucket("z", ROOT_ACCOUNT, PRIVATE, 5)
        for limit in (1, 2, 3, 100):
            assert [row.name for row in owned(metadata, ROOT_ACCOUNT, limit)] == ["a", "b", "bucket", "c", "e", "z"]
        assert [row.name for row in owned(metadata, "ann")] == ["d"]

    def test_the_acl_of_a_bucket(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert not metadata.set_bucket_acl("bucket", PUBLIC, 5)
        bench.put("n")
        for acl in CannedAcl:
            assert metadata.set_bucket_acl("bucket", acl, 5)
            assert metadata.bucket("bucket") == BucketRow("bucket", ROOT_ACCOUNT, 5, acl)

    def test_a_bucket_is_given_to_another_account(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert not metadata.set_bucket_owner("bucket", "ann", 5)
        bench.put("n")
        assert metadata.set_bucket_owner("bucket", "ann", 5)
        assert metadata.bucket("bucket") == BucketRow("bucket", "ann", 5)
        for account in ("bob", "cid"):
            metadata.grant("bucket", account, Rights.READ, 6)
        metadata.set_bucket_acl("bucket", PUBLIC, 7)
        assert metadata.set_bucket_owner("bucket", "bob", 8)
        assert metadata.bucket("bucket") == BucketRow("bucket", "bob", 5, PUBLIC)
        assert metadata.grants("bucket") == {"cid": Rights.READ}
        assert [metadata.buckets_of(owner, "", 10) for owner in (ROOT_ACCOUNT, "ann")] == [[], []]
        metadata.create_bucket("gone", "ann", PRIVATE, 9)
        metadata.delete_bucket("gone", 9)
        assert not metadata.set_bucket_owner("gone", "bob", 9)

    def test_an_acl_and_its_grants_are_set_at_once(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert not metadata.set_bucket_acl("bucket", CannedAcl.GRANTS, 5, b"one")
        metadata.create_bucket("bucket", "ann", PUBLIC, 5)
        for acl, grants in ((CannedAcl.GRANTS, b"one"), (CannedAcl.GRANTS, b"two"), (PUBLIC, None)):
            assert metadata.set_bucket_acl("bucket", acl, 6, grants)
            assert metadata.bucket("bucket") == BucketRow("bucket", "ann", 5, acl)
            assert metadata.bucket_document("bucket", DocumentKind.ACL) == grants
        metadata.set_bucket_acl("bucket", CannedAcl.GRANTS, 7, b"three")
        with pytest.raises(InvalidInput, match="the limit is"):
            metadata.set_bucket_acl("bucket", PUBLIC, 8, bytes(DOCUMENT_BYTES_MAX + 1))
        assert metadata.bucket("bucket") == BucketRow("bucket", "ann", 5, CannedAcl.GRANTS)
        assert metadata.bucket_document("bucket", DocumentKind.ACL) == b"three"

    def test_documents_of_a_bucket(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert not metadata.set_bucket_document("bucket", DocumentKind.TAGS, b"x", 5)
        metadata.create_bucket("bucket", "ann", PRIVATE, 5)
        for body in (b"x", b"", bytes(range(256)) * (DOCUMENT_BYTES_MAX // 256)):
            assert metadata.set_bucket_document("bucket", DocumentKind.TAGS, body, 5)
            assert metadata.bucket_document("bucket", DocumentKind.TAGS) == body
        with pytest.raises(InvalidInput, match="the limit is"):
            metadata.set_bucket_document("bucket", DocumentKind.TAGS, bytes(DOCUMENT_BYTES_MAX + 1), 5)
        assert metadata.set_bucket_document("bucket", DocumentKind.TAGS, None, 5)
        assert metadata.bucket_document("bucket", DocumentKind.TAGS) is None

    def test_some_documents_of_a_bucket(self, bench: MetadataBench) -> None:
        metadata, (first, second, *others) = bench.metadata, DocumentKind
        for name in ("bucket", "other"):
            metadata.create_bucket(name, "ann", PRIVATE, 5)
            for kind in (first, second):
                metadata.set_bucket_document(name, kind, f"{kind} of {name}".encode(), 5)
        assert metadata.bucket_documents("bucket", (second, *others)) == {second: f"{second} of bucket".encode()}
        assert metadata.bucket_documents("other", (first, second)).keys() == {first, second}
        assert metadata.bucket_documents("other", others) == metadata.bucket_documents("other", ()) == {}
        assert metadata.bucket_documents("none", tuple(DocumentKind)) == {}

    def test_documents_of_a_kind(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        names = ["a", "b", "é", "\U0001f600", "\uffee", "z"]
        for name in names:
            metadata.create_bucket(name, "ann", PRIVATE, 5)
            metadata.set_bucket_document(name, DocumentKind.TAGS, b"tags", 5)
            if name != "b":
                metadata.set_bucket_document(name, DocumentKind.LIFECYCLE, name.encode(), 5)
        metadata.delete_bucket("z", 6)
        wanted = [(name, name.encode()) for name in sorted({*names} - {"b", "z"}, key=str.encode)]
        for limit in (1, 2, 3, 100):
            found, after = [], ""
            while page := metadata.documents_of(DocumentKind.LIFECYCLE, after, limit):
                assert len(page) <= limit
                found += page
                after = page[-1][0]
            assert found == wanted

    def test_grants_of_a_bucket(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert not metadata.grant("bucket", "bob", Rights.READ, 5)
        metadata.create_bucket("bucket", "ann", PRIVATE, 5)
        assert metadata.grant("bucket", "bob", Rights.READ | Rights.LIST, 5)
        assert metadata.grant("bucket", "cid", Rights.WRITE, 5)
        assert metadata.grant("bucket", "cid", Rights.OWNER, 5)
        assert metadata.grants("bucket") == {"bob": Rights.READ | Rights.LIST, "cid": Rights.OWNER}
        assert metadata.grant("bucket", "bob", Rights.NONE, 5)
        assert metadata.grants("bucket") == {"cid": Rights.OWNER}

    def test_buckets_are_restored_as_they_were(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        for name in ("a", "b", "c", "gone"):
            metadata.create_bucket(name, "ann", PUBLIC, 5)
        metadata.set_bucket_document("a", DocumentKind.TAGS, b"tags", 5)
        metadata.grant("b", "bob", Rights.READ, 5)
        metadata.grant("b", "cid", Rights.WRITE, 5)
        metadata.delete_bucket("gone", 6)
        pages = [metadata.bucket_records("", 2), metadata.bucket_records("b", 2)]
        found = [one for page in pages for one in page]
        assert found == [
            BucketRecord(BucketRow("a", "ann", 5, PUBLIC), {}, {DocumentKind.TAGS: b"tags"}),
            BucketRecord(BucketRow("b", "ann", 5, PUBLIC), {"bob": Rights.READ, "cid": Rights.WRITE}, {}),
            BucketRecord(BucketRow("c", "ann", 5, PUBLIC), {}, {}),
        ]
        metadata.set_bucket_acl("a", PRIVATE, 7)
        metadata.grant("b", "dan", Rights.READ, 7)
        metadata.delete_bucket("c", 7)
        for _ in range(2):
            metadata.restore_buckets(found)
            assert metadata.bucket_records("", 9) == found
        metadata.restore_buckets([])


class AccessKeyContract:
    """All of `AccessKeys`."""

    def test_every_change_of_access_is_told(self, bench: MetadataBench) -> None:
        """A rebuild of the metadata knows only the changes that were reported."""
        metadata, told = bench.metadata, list[tuple[AccessOf, str]]()
        metadata.on_access_changed(lambda of, name: told.append((of, name)))
        key = AccessKey("key", "ann", b"secret", KeyState.ACTIVE, 5, "")
        changes: dict[str, Callable[[], object]] = {
            "create_bucket": lambda: metadata.create_bucket("b", "ann", PRIVATE, 5),
            "set_bucket_owner": lambda: metadata.set_bucket_owner("b", "bob", 5),
            "set_bucket_acl": lambda: metadata.set_bucket_acl("b", PUBLIC, 5),
            "set_bucket_document": lambda: metadata.set_bucket_document("b", DocumentKind.TAGS, b"tags", 5),
            "grant": lambda: metadata.grant("b", "cid", Rights.READ, 5),
            "delete_bucket": lambda: metadata.delete_bucket("b", 5),
            "add_access_key": lambda: metadata.add_access_key(key),
            "change_access_key": lambda: metadata.change_access_key("key", KeyState.DISABLED),
            "remove_access_key": lambda: metadata.remove_access_key("key"),
        }
        methods = {name for of in (BucketState, Buckets, AccessKeys) for name in vars(of) if not name.startswith("_")}
        told_nobody = {"restore_buckets", "correct_document"}
        assert methods == changes.keys() | READING | told_nobody, "a new method changes access, or only reads"
        for name, change in changes.items():
            change()
            assert told == [(AccessOf.KEY, "key") if "access_key" in name else (AccessOf.BUCKET, "b")], name
            told.clear()

    def test_a_copy_is_corrected_without_telling(self, bench: MetadataBench) -> None:
        metadata, told = bench.metadata, list[str]()
        metadata.create_bucket("b", "ann", PRIVATE, 5)
        metadata.on_access_changed(lambda _, name: told.append(name))
        for body in (b"one", b"two", None):
            assert metadata.correct_document("b", DocumentKind.NOTIFICATION, body, 5)
            assert metadata.bucket_document("b", DocumentKind.NOTIFICATION) == body
        assert not metadata.correct_document("none", DocumentKind.NOTIFICATION, b"one", 5)
        assert told == []

    def test_an_access_key_is_found_and_changed(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        key = AccessKey("AKé", "ann", bytes(range(256)) * 2, KeyState.ACTIVE, 5, "her läptop")
        assert metadata.access_key("AKé") is None
        for _ in range(2):
            metadata.add_access_key(key)
            assert metadata.access_key("AKé") == key
        with pytest.raises(Conflict, match="already exists"):
            metadata.add_access_key(replace(key, account="bob"))
        assert metadata.change_access_key("AKé", KeyState.DISABLED)
        assert metadata.change_access_key("AKé", KeyState.DISABLED), "again, as after a Transient"
        assert metadata.access_key("AKé") == replace(key, state=KeyState.DISABLED)
        assert metadata.change_access_key("AKé", KeyState.ACTIVE, b"new")
        assert metadata.access_key("AKé") == replace(key, secret=b"new")
        assert not metadata.change_access_key("akÉ", KeyState.ACTIVE), "compared byte by byte"
        assert metadata.remove_access_key("AKé")
        assert not metadata.remove_access_key("AKé")
        assert metadata.access_key("AKé") is None

    def test_the_generation_of_an_access_key_changes_when_its_sessions_end(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        key = AccessKey("AK", "ann", b"secret", KeyState.ACTIVE, 5)

        def generation() -> bytes:
            found = metadata.access_key("AK")
            assert found is not None
            assert found in metadata.access_keys("", 10)
            assert len(found.generation) == 8
            return found.generation

        metadata.add_access_key(key)
        first = generation()
        metadata.add_access_key(key)
        metadata.change_access_key("AK", KeyState.DISABLED)
        metadata.change_access_key("AK", KeyState.ACTIVE, b"encrypted again")
        assert generation() == first
        metadata.change_access_key("AK", KeyState.ACTIVE, ends_sessions=True)
        second = generation()
        metadata.remove_access_key("AK")
        metadata.add_access_key(replace(key, generation=second))
        assert len({first, second, generation()}) == 3, "one that is restored is new"

    def test_access_keys_are_listed_in_pages(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        keys = [AccessKey(name, "ann", b"s", KeyState.ACTIVE, 5) for name in ("A", "B", "a", "b")]
        for key in reversed(keys):
            metadata.add_access_key(key)
        assert metadata.access_keys("", 3) == keys[:3]
        assert metadata.access_keys("a", 3) == keys[3:]
        assert metadata.access_keys("b", 3) == []
