"""A Hypothesis state machine that does the same on a store of two cells and on a store without cells, through S3 and
the Python library. All answers must be the same, however the buckets are spread over the cells.

Both stores are used by all histories, each of which has its own buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from nos_consumer.assemble import drain
from nos_ec.cli.commands.cells import enter_cell
from nos_ec.composition.cells import Cells
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.errors import NosError
from nos_ec.library.object_info import ObjectInfo
from nos_ec.library.object_store import ObjectStore
from nos_ec.settings import load_settings
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service
from tests.service.conftest import CHUNK, CONFIG, STRIPE
from tests.service.s3.cell_stores import serving_cells
from tests.service.s3.s3_gateway import serving

pytestmark = pytest.mark.invariant(12)

CELLS = ("a", "b")
NUMBERS = st.integers(0, 3)
KEYS = st.sampled_from(["a", "d/a", "d/b", "é"])
ACCOUNTS = st.sampled_from(["ann", "ann", "bob"])
SIZES = st.sampled_from([0, 1, 4097, CHUNK, CHUNK + 1, STRIPE, 9 * STRIPE])
"""The last one is a large object, with blocks of its own."""
VOLATILE = {"ResponseMetadata", "LastModified", "CreationDate", "VersionId", "UploadId", "CopySourceVersionId"}
"""What differs between two stores."""
ACL_OF_BOTH = "public-read-write"
"""Buckets of it can be written by the other account."""

_examples = count()


@dataclass(frozen=True, slots=True)
class Served:
    """An open store, its gateway's clients by account, and its parts."""

    library: ObjectStore
    clients: Mapping[str, Any]
    systems: tuple[System, ...]
    cells: Cells | None = None


def cells_text(folder: Path) -> str:
    tables = "".join(f'[cells.{name}]\nstore.root = "{folder / name}"\n' for name in CELLS)
    return CONFIG.replace('root = "store"', f'directory = "{CELLS[0]}"') + tables


@contextmanager
def both(folder: Path) -> Iterator[tuple[Served, Served]]:
    """The store of two cells and the one without, both new."""
    divided, single = folder / "cells.toml", folder / "single.toml"
    divided.write_text(cells_text(folder))
    single.write_text(CONFIG.replace('"store"', f'"{folder / "single"}"'))
    initialise(load_settings(single, {}))
    of_cells = load_settings(divided, {})
    for name in CELLS:
        initialise(of_cells.of_cell(name))
        enter_cell(of_cells, name)
    with ExitStack() as stack:
        cells, gateway = stack.enter_context(serving_cells(of_cells))
        system = stack.enter_context(open_system(load_settings(single, {})))
        other = stack.enter_context(serving(system))
        yield (
            Served(ObjectStore(cells), clients_of(gateway), tuple(cells.opened().values()), cells),
            Served(ObjectStore(system), clients_of(other), (system,)),
        )


def clients_of(gateway: Any) -> dict[str, Any]:
    return {account: gateway.client(account) for account in ("ann", "bob")}


def settled(value: object) -> object:
    """What an answer of S3 or of the library says that does not depend on the store."""
    if isinstance(value, ObjectInfo):
        return str(value.key), value.size, value.crc32c, value.md5, value.parts, value.attributes
    if isinstance(value, dict):
        return {name: settled(one) for name, one in value.items() if name not in VOLATILE}
    if hasattr(value, "read"):
        return value.read()
    return [settled(one) for one in value] if isinstance(value, list | tuple) else value


def answer_of(call: Callable[[], object]) -> object:
    """What a call returns, or how it is refused."""
    try:
        return settled(call())
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]
    except NosError as error:
        return type(error).__name__


class StoreMachine(RuleBasedStateMachine):
    """The rules. `stores` is set by the subclass."""

    stores: tuple[Served, Served]

    @initialize(versions=st.integers(0, 4))
    def begin(self, versions: int) -> None:
        """New buckets. All but the last one exist, and one may have versions."""
        example = next(_examples)
        self.buckets = [f"history-{example}-{number}" for number in range(4)]
        self.homes: dict[str, str] = {}
        self.exist: set[str] = set()
        for number in range(3):
            self.create_bucket(number, "ann")
        if versions < 3:
            self.set_versioning(versions, "Enabled")

    def s3(self, account: str, operation: str, **arguments: object) -> Any:
        """Send the same request to both gateways. Returns the answer, which must be the same."""
        return self.same(lambda store: getattr(store.clients[account], operation)(**arguments))

    def same(self, call: Callable[[Served], object]) -> Any:
        """Do the same in both stores. Returns the answer, which must be the same."""
        found, expected = (answer_of(lambda store=store: call(store)) for store in type(self).stores)  # type: ignore[misc]
        assert found == expected
        return found

    # --- buckets ----------------------------------------------------------------------------------
    @rule(number=NUMBERS, account=ACCOUNTS)
    def create_bucket(self, number: int, account: str) -> None:
        """CreateBucket, of a bucket that may be there, or may have been there and belonged to another account."""
        answer = self.s3(account, "create_bucket", Bucket=self.buckets[number], ACL=ACL_OF_BOTH)
        if isinstance(answer, dict):
            self.exist.add(self.buckets[number])

    @rule(number=NUMBERS, account=ACCOUNTS, empty=st.booleans())
    def delete_bucket(self, number: int, account: str, empty: bool) -> None:
        """DeleteBucket, which is refused unless the bucket is empty and belongs to the account."""
        if empty:
            for key in ("a", "d/a", "d/b", "é"):
                self.delete(number, key, account)
        if isinstance(self.s3(account, "delete_bucket", Bucket=self.buckets[number]), dict):
            self.exist.discard(self.buckets[number])

    @rule(number=NUMBERS, status=st.sampled_from(["Enabled", "Suspended"]))
    def set_versioning(self, number: int, status: str) -> None:
        """PutBucketVersioning."""
        self.s3("ann", "put_bucket_versioning", Bucket=self.buckets[number], VersioningConfiguration={"Status": status})

    # --- objects by S3 ----------------------------------------------------------------------------
    @rule(number=NUMBERS, key=KEYS, size=SIZES, account=ACCOUNTS, absent=st.booleans())
    def put(self, number: int, key: str, size: int, account: str, absent: bool) -> None:
        """PutObject, maybe only if there is no such object."""
        condition = {"IfNoneMatch": "*"} if absent else {}
        self.s3(account, "put_object", Bucket=self.buckets[number], Key=key, Body=self.body(size), **condition)

    @rule(source=NUMBERS, number=NUMBERS, key=KEYS, new=KEYS, size=SIZES)
    def copy(self, source: int, number: int, key: str, new: str, size: int) -> None:
        """CopyObject of a new object between buckets, which may be in two cells."""
        self.put(source, key, size, "ann", absent=False)
        copied = {"Bucket": self.buckets[source], "Key": key}
        self.s3("ann", "copy_object", Bucket=self.buckets[number], Key=new, CopySource=copied)

    @rule(number=NUMBERS, key=KEYS, size=st.sampled_from([1, CHUNK, STRIPE]))
    def upload(self, number: int, key: str, size: int) -> None:
        """A multipart upload of one part."""
        target = {"Bucket": self.buckets[number], "Key": key}
        body = self.body(size)

        def call(store: Served) -> object:
            client = store.clients["ann"]
            target["UploadId"] = client.create_multipart_upload(Bucket=self.buckets[number], Key=key)["UploadId"]
            part = {"PartNumber": 1, "ETag": client.upload_part(**target, PartNumber=1, Body=body)["ETag"]}
            return client.complete_multipart_upload(**target, MultipartUpload={"Parts": [part]})["ETag"]

        self.same(lambda store: call(store))

    @rule(number=NUMBERS, key=KEYS, account=ACCOUNTS)
    def delete(self, number: int, key: str, account: str) -> None:
        """DeleteObject."""
        self.s3(account, "delete_object", Bucket=self.buckets[number], Key=key)

    @rule(key=KEYS, account=ACCOUNTS, first=st.sampled_from([0, 1, CHUNK]))
    def get(self, key: str, account: str, first: int) -> None:
        """GetObject of a range, from all buckets."""
        for bucket in self.buckets:
            self.s3(account, "get_object", Bucket=bucket, Key=key, Range=f"bytes={first}-")

    @rule(number=NUMBERS, limit=st.sampled_from([1, 2, 1000]), delimiter=st.sampled_from(["", "/"]))
    def page(self, number: int, limit: int, delimiter: str) -> None:
        """ListObjectsV2, and ListObjectVersions."""
        listed = {"Bucket": self.buckets[number], "MaxKeys": limit, "Delimiter": delimiter}
        self.same(lambda store: self.first_page(store, listed))

    def first_page(self, store: Served, listed: dict[str, Any]) -> object:
        """The first page of a bucket, without the marks by which it continues, which are of the store."""
        found = store.clients["ann"].list_objects_v2(**listed)
        versions = store.clients["ann"].list_object_versions(**listed)
        marks = ("NextContinuationToken", "NextVersionIdMarker")
        return [{name: value for name, value in page.items() if name not in marks} for page in (found, versions)]

    # --- objects by the library -------------------------------------------------------------------
    @rule(number=NUMBERS, names=st.lists(KEYS, min_size=1, max_size=4), size=st.sampled_from([1, 3000, CHUNK]))
    def put_many(self, number: int, names: list[str], size: int) -> None:
        """Put several objects at once into a bucket that exists."""
        bucket, body = self.buckets[number], self.body(size)
        if bucket in self.exist:
            self.same(lambda store: list(store.library.put_many([(f"{bucket}/{name}", body) for name in names])))

    @rule(number=NUMBERS, key=KEYS, value=st.sampled_from(["1", "2"]))
    def set_attributes(self, number: int, key: str, value: str) -> None:
        """Change the attributes of an object."""
        self.same(lambda store: store.library.set_attributes(f"{self.buckets[number]}/{key}", {"k": value}))

    @rule(key=KEYS)
    def delete_many(self, key: str) -> None:
        """Delete objects of all buckets at once."""
        self.same(lambda store: list(store.library.delete_many([f"{bucket}/{key}" for bucket in self.buckets])))

    # --- the other work ---------------------------------------------------------------------------
    @rule()
    def work(self) -> None:
        """Let producers, consumers and GC do what there is to do, in all cells."""
        for store in type(self).stores:
            for system in store.systems:
                system.worker.housekeeping().run_once()
                with producer_service(system) as producer:
                    producer.drain()
                drain(system)
                gc_service(system).run_once()

    @rule()
    def forget_homes(self) -> None:
        """Let the process forget what it knows about homes, as a new one does."""
        cells = type(self).stores[0].cells
        assert cells is not None
        cells._homes.clear()

    @invariant()
    def objects_are_the_same(self) -> None:
        """Both stores have the same buckets and objects, which can be read."""
        self.same(self.whole)

    def whole(self, store: Served) -> object:
        """All buckets of the accounts, and all objects with their bytes."""
        ours = set(self.buckets)
        owned = {
            account: [one["Name"] for one in client.list_buckets()["Buckets"] if one["Name"] in ours]
            for account, client in store.clients.items()
        }
        infos = [info for bucket in self.buckets for info in store.library.list(bucket)]
        named = [name for name in store.library.buckets() if name in ours]
        return [owned, named, infos, [store.library.get(info) for info in infos]]

    @invariant()
    def homes_do_not_change(self) -> None:
        """Each bucket has had one home since it was created first, and its objects lie there alone."""
        cells = type(self).stores[0].cells
        assert cells is not None
        for bucket in self.buckets:
            row = cells.directory.metadata.directory_row(bucket)
            if row is not None:
                assert self.homes.setdefault(bucket, row.home) == row.home
            for name, system in cells.opened().items():
                if name != self.homes.get(bucket):
                    assert not system.metadata.list_objects(bucket, "", "", 10)

    def body(self, size: int) -> bytes:
        """Bytes that no other object has."""
        self.bodies = getattr(self, "bodies", 0) + 1
        return (b"%08d" % self.bodies * (size // 8 + 1))[:size]


def test_two_cells_answer_like_one_store(tmp_path: Path) -> None:
    with both(tmp_path) as found:

        class Machine(StoreMachine):
            stores = found

        modest = settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # to shrink a history that fails takes many minutes
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(Machine, settings=modest)
