"""A Hypothesis state machine that does the same on a store of three cells and on a store without cells, through S3 and
the Python library. All answers must be the same, however the buckets are spread over the cells.

Meanwhile buckets are moved from cell to cell. The commands that move them stand still between their steps, where users
and daemons do all other things, and where the commands are killed, fail, or are taken for dead. The store without cells
is the model: a change that the other store refuses because of a move is not made in it. One bucket is wide: what a cell
has of it is moved while the other cells serve the rest. A request may be refused only because of a cell that it needs.

Both stores are used by all histories, each of which has its own buckets.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from nos_consumer.assemble import drain
from nos_ec.cli.app import run
from nos_ec.cli.commands.cell_moves import _move, _opened, next_command, open_directory
from nos_ec.cli.commands.cells import enter_cell
from nos_ec.composition.cells import Cells
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.deadlines import PARTS_GRACE_MS
from nos_ec.core.errors import Moved, NosError, NotFound, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.moving import bucket_mover
from nos_ec.engine.moving.keys import trash_of
from nos_ec.engine.objects.trash import TrashCan
from nos_ec.engine.upkeep.move_recovery import all_unfinished_moves, stalled_moves
from nos_ec.engine.upkeep.upload_reaper import UploadReaper
from nos_ec.gateway.operations import multipart_operations
from nos_ec.gateway.server import http_server
from nos_ec.library.object_info import ObjectInfo, info_of
from nos_ec.library.object_store import ObjectStore
from nos_ec.ports.metadata import DirectoryRow, MoveState
from nos_ec.ports.metadata.directory import decode_slices, places_of
from nos_ec.settings import Settings, load_settings
from nos_ec.settings.section import DAY
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service
from tests.rig.at_rest import LaterClock
from tests.rig.fakes.audit import problems
from tests.rig.stepped_commands import Killed, SteppedCommand, standing_still
from tests.service.conftest import CHUNK, CONFIG, STRIPE
from tests.service.s3.cell_stores import serving_cells
from tests.service.s3.s3_gateway import serving

pytestmark = pytest.mark.invariant(12)

CELLS = ("a", "b", "c")
"""The last one takes no new buckets."""
WIDE = 4
"""The number of the wide bucket of a history."""
SLICES = ("a", "b", "a", "a", "b", "b")
"""Each of its cells has two of the NAMES."""
NUMBERS = st.sampled_from([0, 0, 0, 0, 1, 2, 3, WIDE, WIDE, WIDE])
"""Most of what happens is about two buckets, so that they are changed between the steps of their moves."""
NAMES = ("a", "d/a", "d/b", "é")
KEYS = st.sampled_from(NAMES)
ACCOUNTS = st.sampled_from(["ann", "ann", "bob"])
SIZES = st.sampled_from([0, 1, 4097, CHUNK, CHUNK + 1, STRIPE, 9 * STRIPE])
"""The last one is a large object, with blocks of its own."""
VOLATILE = {"ResponseMetadata", "LastModified", "CreationDate", "VersionId", "UploadId", "CopySourceVersionId"}
"""What differs between two stores."""
CHANGED = frozenset([MoveState.HERE, MoveState.LEAVING])
READ = CHANGED | {MoveState.CLOSED}
"""The states in which a bucket is changed, and in which it is read."""
Needed = Mapping[str, frozenset[MoveState]]
"""In which states the cells of a place must be for a request. A place is `bucket` for all cells of a bucket, `bucket/`
for the one with its documents, and `bucket/name` for the one with this object."""
COMMANDS_MAX = 2
UPLOADS_MAX = 3
STOPS = (
    "the beginning",
    "moving.leaving",
    "moving.compared",
    "moving.closed",
    "moving.bucket_copied",
    "moving.gone",
    "moving.home_changed",
    "",
)
"""Where a command may go at once; at last to its end."""
REFUSALS = re.compile(
    "there is no bucket|is wide; such|is in cell . already|was moved to cell .|is being moved to cell"
    "|still has old copies|must be dumped|was not moved away|is not complete; move it|can only be completed"
    "|another process has begun|was deleted while it was moved|it took this process for dead|was closed . times"
    "|the database went away|give that up first|has another place|has slices of bucket|may have had other slices"
    "|has nothing in cell"
)
"""What a command may end with."""
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

    def home(self, bucket: str) -> System:
        """The store, or the cell that is the home of a bucket."""
        if self.cells is None:
            return self.systems[0]
        row = self.cells.directory.metadata.directory_row(bucket)
        if row is None:
            raise NotFound(f"there is no bucket {bucket}")
        return self.cells.system(row.home)


@dataclass(frozen=True, slots=True)
class Begun:
    """An unfinished upload. `ids` are its ids in the store of cells and in the other one."""

    bucket: str
    key: str
    ids: Sequence[str]

    def of(self, store: Served) -> dict[str, str]:
        """Return the parameters that identify the upload in requests to a store."""
        return {"Bucket": self.bucket, "Key": self.key, "UploadId": self.ids[store.cells is None]}


CONFIG_OF_BOTH = CONFIG + "[trash]\nkeep_days = 1\n"


def cells_text(folder: Path) -> str:
    tables = "".join(
        f'[cells.{name}]\nweight = {int(name in SLICES)}\nstore.root = "{folder / name}"\n' for name in CELLS
    )
    return CONFIG_OF_BOTH.replace('root = "store"', f'directory = "{CELLS[0]}"') + tables


@contextmanager
def both(folder: Path) -> Iterator[tuple[Served, Served]]:
    """The store of cells and the one without, both new."""
    divided, single = folder / "cells.toml", folder / "single.toml"
    divided.write_text(cells_text(folder))
    single.write_text(CONFIG_OF_BOTH.replace('"store"', f'"{folder / "single"}"'))
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


def is_refusal(answer: object) -> bool:
    """Whether a call was refused because its bucket is being moved, or was."""
    return answer in ("Moved", "Transient") or (isinstance(answer, tuple) and answer[1:] == (503,))


def of_object(bucket: str, key: str, states: frozenset[MoveState]) -> dict[str, frozenset[MoveState]]:
    """Return what an S3 request about an object needs: its cell, and the documents of the bucket."""
    return {f"{bucket}/": READ, f"{bucket}/{key}": states}


def move(settings: Settings, bucket: str, to: str, source: str | None) -> None:
    with open_directory(settings) as directory:
        _move(settings, directory, bucket, to, 0, source)


def answer_of(call: Callable[[], object]) -> object:
    """What a call returns, or how it is refused."""
    try:
        return settled(call())
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]
    except NosError as error:
        return type(error).__name__


class StoreMachine(RuleBasedStateMachine):
    """The rules. `stores` is set by the subclass, and `config`, the file with the settings of the cells.

    They have no preconditions: how far a command is depends on what earlier histories have left in the cells, and
    Hypothesis may not draw another history because of that."""

    stores: tuple[Served, Served]
    config: Path

    @initialize(
        versions=st.sampled_from([0, 0, 1, 3, WIDE, WIDE]),
        moved=st.sampled_from([0, WIDE]),
        which=st.integers(0, 1),
        few=st.booleans(),
        stop=st.sampled_from(STOPS),
    )
    def begin(self, versions: int, moved: int, which: int, few: bool, stop: str) -> None:
        """New buckets. All but one of them exist, and most of the time one has versions. The first one or the wide one
        is being moved, or has been moved."""
        example = next(_examples)
        self.buckets = [f"history-{example}-{number}" for number in range(WIDE + 1)]
        # The cell of each slice, or of a bucket that is not wide, and where that is going while no cell serves it.
        self.places: dict[str, Sequence[str]] = {}
        self.gone_to: dict[str, dict[str, str]] = {bucket: {} for bucket in self.buckets}
        self.old_rows: dict[str, dict[Sequence[str], DirectoryRow]] = {bucket: {} for bucket in self.buckets}
        self.exist: set[str] = set()
        # Their creation was refused after the directory knew of it, or an object came back after their deletion.
        self.unlisted: set[str] = set()
        self.commands: list[SteppedCommand] = []
        self.uploads: list[Begun] = []
        self.cells.claim_wide(self.buckets[WIDE], "ann", SLICES)
        for number in (WIDE, 0, 1, 2):
            self.create_bucket(number, "ann")
        if versions != 3:
            self.set_versioning(versions, "Enabled")
        for number in (0, 1, WIDE):
            self.put_many(number, ["a", "d/a"], 1)
            self.upload(number, "d/b", 1)
            self.put(number, "é", CHUNK, "ann", "")
        self.begin_upload(moved, "d/a")
        self.put_part(0, 1, 4097)
        self.only_homes_have_objects()
        self.move_away(moved, which, few, stop)

    @property
    def cells(self) -> Cells:
        """The cells of the store that has them."""
        cells = type(self).stores[0].cells
        assert cells is not None
        return cells

    def s3(self, account: str, operation: str, **arguments: object) -> Any:
        """Send the same request to both gateways. Returns what `same` returns."""
        bucket, key = str(arguments["Bucket"]), arguments.get("Key")
        states = READ if operation.startswith(("get_", "head_", "list_")) else CHANGED
        needed = {bucket: states} if key is None else of_object(bucket, str(key), states)
        return self.same(lambda store: getattr(store.clients[account], operation)(**arguments), needed)

    def same(self, call: Callable[[Served], object], needed: Needed) -> Any:
        """Do the same in both stores. Returns the answer, which must be the same. If the cells refuse it because one of
        them is not in a state that it needs, it is not done in the other store, and None is returned."""
        first, second = type(self).stores
        found = answer_of(partial(call, first))
        for _ in needed:
            if is_refusal(found):
                if not all(self.is_in(place, states) for place, states in needed.items()):
                    return None
                found = answer_of(partial(call, first))  # the process has learned where one of the buckets is
        expected = answer_of(partial(call, second))
        assert found == expected
        return found

    def is_in(self, place: str, states: frozenset[MoveState]) -> bool:
        """Return whether the cells of a place (see Needed) are in one of these states."""
        bucket, _, name = place.partition("/")
        row = self.cells.directory.metadata.directory_row(bucket)
        if row is None:
            return True
        cells: Sequence[str] = row.cells  # which all say whether the bucket exists, and what is in it
        if name:
            cells = [row.cell_of(name)]
        elif place.endswith("/") and bucket in self.exist:
            cells = [row.home]
        rows = [self.cells.system(cell).metadata.move_row(bucket) for cell in cells]
        return all(row is None or row.state in states for row in rows)

    def changeable(self, name: str = "") -> list[str]:
        """The buckets that can be changed, or those in which this name can be."""
        return [bucket for bucket in self.buckets if self.is_in(f"{bucket}/{name}" if name else bucket, CHANGED)]

    # --- buckets ----------------------------------------------------------------------------------
    @rule(number=NUMBERS, account=ACCOUNTS)
    def create_bucket(self, number: int, account: str) -> None:
        """CreateBucket, of a bucket that may be there, or may have been there and belonged to another account."""
        bucket = self.buckets[number]
        answer = self.s3(account, "create_bucket", Bucket=bucket, ACL=ACL_OF_BOTH)
        if isinstance(answer, dict):
            self.exist.add(bucket)
            self.unlisted.discard(bucket)
        elif answer is None and bucket not in self.exist:
            self.unlisted.add(bucket)
        self.same(self.owned, {})

    @rule(number=NUMBERS, account=ACCOUNTS, empty=st.booleans())
    def delete_bucket(self, number: int, account: str, empty: bool) -> None:
        """DeleteBucket, which is refused unless the bucket is empty and belongs to the account."""
        if empty:
            for key in NAMES:
                self.delete(number, key, account)
        answer = self.s3(account, "delete_bucket", Bucket=self.buckets[number])
        if isinstance(answer, dict):
            self.exist.discard(self.buckets[number])
        if isinstance(answer, dict) or answer == ("NoSuchBucket", 404):
            self.unlisted.discard(self.buckets[number])
        self.same(self.owned, {})

    @rule(number=NUMBERS, status=st.sampled_from(["Enabled", "Suspended"]))
    def set_versioning(self, number: int, status: str) -> None:
        """PutBucketVersioning."""
        asked = {"Bucket": self.buckets[number], "VersioningConfiguration": {"Status": status}}
        needed = {f"{self.buckets[number]}/": CHANGED}
        self.same(lambda store: store.clients["ann"].put_bucket_versioning(**asked), needed)

    # --- objects by S3 ----------------------------------------------------------------------------
    @rule(number=NUMBERS, key=KEYS, size=SIZES, account=ACCOUNTS, condition=st.sampled_from(["", "absent", *NAMES]))
    def put(self, number: int, key: str, size: int, account: str, condition: str) -> None:
        """PutObject, maybe only if there is no such object, or if it is the one that has a name, which may be another
        one."""
        bucket, body = self.buckets[number], self.body(size)

        def call(store: Served) -> object:
            client, holds = store.clients[account], {}
            if condition == "absent":
                holds["IfNoneMatch"] = "*"
            elif condition:
                holds["IfMatch"] = client.head_object(Bucket=bucket, Key=condition)["ETag"]
            return client.put_object(Bucket=bucket, Key=key, Body=body, **holds)

        seen = {f"{bucket}/{condition}": READ} if condition in NAMES else {}
        self.same(call, seen | of_object(bucket, key, CHANGED))

    @rule(source=NUMBERS, number=NUMBERS, key=KEYS, new=KEYS, size=SIZES)
    def copy(self, source: int, number: int, key: str, new: str, size: int) -> None:
        """CopyObject of a new object between buckets, which may be in two cells."""
        self.put(source, key, size, "ann", "")
        names = {"Bucket": self.buckets[number], "Key": new, "CopySource": {"Bucket": self.buckets[source], "Key": key}}
        needed = of_object(self.buckets[source], key, READ) | of_object(self.buckets[number], new, CHANGED)
        self.same(lambda store: store.clients["ann"].copy_object(**names), needed)

    @rule(number=NUMBERS, key=KEYS, size=st.sampled_from([1, CHUNK, STRIPE]))
    def upload(self, number: int, key: str, size: int) -> None:
        """A multipart upload of one part."""
        named = {"Bucket": self.buckets[number], "Key": key}
        target = dict(named)
        body = self.body(size)

        def call(store: Served) -> object:
            client = store.clients["ann"]
            target["UploadId"] = client.create_multipart_upload(**named)["UploadId"]
            part = {"PartNumber": 1, "ETag": client.upload_part(**target, PartNumber=1, Body=body)["ETag"]}
            return client.complete_multipart_upload(**target, MultipartUpload={"Parts": [part]})["ETag"]

        self.same(call, of_object(self.buckets[number], key, CHANGED))

    @rule(number=NUMBERS, key=KEYS)
    def begin_upload(self, number: int, key: str) -> None:
        """Begin a multipart upload that stays unfinished for some time."""
        if len(self.uploads) == UPLOADS_MAX:
            return
        named, ids = {"Bucket": self.buckets[number], "Key": key}, list[str]()
        self.same(
            lambda store: ids.append(store.clients["ann"].create_multipart_upload(**named)["UploadId"]),
            of_object(named["Bucket"], key, CHANGED),
        )
        if ids:
            self.uploads.append(Begun(named["Bucket"], key, ids))

    @rule(which=st.integers(0, UPLOADS_MAX - 1), part=st.integers(1, 3), size=SIZES)
    def put_part(self, which: int, part: int, size: int) -> None:
        """Store a part of an unfinished upload, maybe in place of another one."""
        if self.uploads:
            begun, body = self.uploads[which % len(self.uploads)], self.body(size)
            self.same(
                lambda store: store.clients["ann"].upload_part(**begun.of(store), PartNumber=part, Body=body),
                of_object(begun.bucket, begun.key, CHANGED),
            )

    @rule(which=st.integers(0, UPLOADS_MAX - 1), left_out=st.integers(0, 1), aborts=st.booleans())
    def end_upload(self, which: int, left_out: int, aborts: bool) -> None:
        """Complete an unfinished upload, maybe without its first part, or abort it."""
        if not self.uploads:
            return
        begun = self.uploads[which % len(self.uploads)]

        def call(store: Served) -> object:
            client, of = store.clients["ann"], begun.of(store)
            if aborts:
                return client.abort_multipart_upload(**of)
            stored = client.list_parts(**of).get("Parts", [])[left_out:]
            parts = [{name: part[name] for name in ("PartNumber", "ETag")} for part in stored]
            return client.complete_multipart_upload(**of, MultipartUpload={"Parts": parts})["ETag"]

        if self.same(call, of_object(begun.bucket, begun.key, CHANGED)) is not None:
            self.uploads.remove(begun)

    @rule(number=NUMBERS, key=KEYS, account=ACCOUNTS)
    def delete(self, number: int, key: str, account: str) -> None:
        """DeleteObject."""
        self.s3(account, "delete_object", Bucket=self.buckets[number], Key=key)

    @rule(number=NUMBERS, keys=st.lists(KEYS, min_size=1, max_size=4, unique=True), account=ACCOUNTS)
    def delete_objects(self, number: int, keys: list[str], account: str) -> None:
        """DeleteObjects, of those keys that can be changed if there are any. The answer may list some of them as
        refused, because the process did not know where they are, and these are tried again."""
        bucket = self.buckets[number]
        keys = [key for key in keys if self.is_in(f"{bucket}/{key}", CHANGED)] or keys
        rest, errors = list(keys), list[object]()

        def call(store: Served) -> object:
            if store.cells is None:
                rest[:], errors[:] = keys, []
            for _ in CELLS:
                deleted = {"Objects": [{"Key": key} for key in rest], "Quiet": True}
                found = store.clients[account].delete_objects(Bucket=bucket, Delete=deleted).get("Errors", [])
                rest[:] = [one["Key"] for one in found if one["Code"] == "ServiceUnavailable"]
                errors.extend((one["Key"], one["Code"]) for one in found if one["Key"] not in rest)
                if not rest:
                    break
            return errors + rest

        self.same(call, {f"{bucket}/": READ} | {f"{bucket}/{key}": CHANGED for key in keys})

    @rule(number=NUMBERS, key=KEYS, place=st.integers(0, 2))
    def delete_version(self, number: int, key: str, place: int) -> None:
        """Delete a version or a delete marker by its id."""
        bucket = self.buckets[number]

        def call(store: Served) -> object:
            client = store.clients["ann"]
            ids = [one["VersionId"] for one in versions_of(client, bucket, key)]
            return client.delete_object(Bucket=bucket, Key=key, VersionId=ids[place]) if place < len(ids) else None

        self.same(call, {bucket: READ} | of_object(bucket, key, CHANGED))

    @rule(number=NUMBERS, key=KEYS, value=st.sampled_from(["1", "2"]))
    def tag(self, number: int, key: str, value: str) -> None:
        """PutObjectTagging."""
        tags = {"TagSet": [{"Key": "k", "Value": value}]}
        self.s3("ann", "put_object_tagging", Bucket=self.buckets[number], Key=key, Tagging=tags)

    @rule(key=KEYS, account=ACCOUNTS, first=st.sampled_from([0, 1, CHUNK]))
    def get(self, key: str, account: str, first: int) -> None:
        """GetObject of a range, from all buckets."""
        for bucket in self.buckets:
            self.s3(account, "get_object", Bucket=bucket, Key=key, Range=f"bytes={first}-")

    @rule(number=NUMBERS, limit=st.sampled_from([1, 2, 1000]), delimiter=st.sampled_from(["", "/"]))
    def page(self, number: int, limit: int, delimiter: str) -> None:
        """ListObjectsV2, and ListObjectVersions."""
        listed = {"Bucket": self.buckets[number], "MaxKeys": limit, "Delimiter": delimiter}
        self.same(lambda store: self.first_page(store, listed), {self.buckets[number]: READ})

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
            row = self.cells.directory.metadata.directory_row(bucket)
            assert row is not None
            of_cell = [(f"{bucket}/{name}", body) for name in names if row.cell_of(name) == row.cell_of(names[0])]
            self.same(lambda store: list(store.library.put_many(of_cell)), {f"{bucket}/{names[0]}": CHANGED})

    @rule(number=NUMBERS, key=KEYS, value=st.sampled_from(["1", "2"]))
    def set_attributes(self, number: int, key: str, value: str) -> None:
        """Change the attributes of an object."""
        name = f"{self.buckets[number]}/{key}"
        self.same(lambda store: store.library.set_attributes(name, {"k": value}), {name: CHANGED})

    @rule(key=KEYS)
    def delete_many(self, key: str) -> None:
        """Delete objects of all buckets at once. The refusal of one of them says nothing about the others, and the call
        is repeated."""
        buckets, deleted = self.changeable(key), dict[str, object]()

        def call(store: Served) -> object:
            if store.cells is None:
                return settled(store.library.delete_many([f"{bucket}/{key}" for bucket in buckets]))
            for bucket in buckets:
                if bucket not in deleted:
                    deleted[bucket] = settled(store.library.delete_many([f"{bucket}/{key}"]))
            return [one for found in deleted.values() for one in found]  # type: ignore[attr-defined]

        self.same(call, {f"{bucket}/{key}": CHANGED for bucket in buckets})

    @rule(number=st.sampled_from([0, 0, 1, 2, 3]), key=KEYS)
    def undelete(self, number: int, key: str) -> None:
        """Bring an object back from the trash."""
        bucket = self.buckets[number]

        def call(store: Served) -> object:
            can = store.home(bucket).client.trash()
            return info_of(can.undelete(can.find(ObjectKey(bucket, key))))

        if isinstance(self.same(call, {bucket: CHANGED}), tuple) and bucket not in self.exist:
            self.unlisted.add(bucket)

    # --- moves ------------------------------------------------------------------------------------
    @rule(
        number=NUMBERS,
        source=st.sampled_from(CELLS),
        to=st.sampled_from(CELLS),
        few=st.booleans(),
        stop=st.sampled_from(STOPS),
    )
    def move(self, number: int, source: str, to: str, few: bool, stop: str) -> None:
        """Let a command begin to move a bucket, or what the cell `source` has of the wide one, or to give its move up,
        and continue to a step. `few`: the bucket is opened again if a name is left when it is closed."""
        bucket = self.buckets[number]
        if len(self.commands) == COMMANDS_MAX:
            return
        bucket_mover.CLOSED_NAMES_MAX = 1 if few else 200

        def passed(point: str) -> None:
            of = source if number == WIDE else self.places[bucket][0]
            if point == "moving.gone":
                self.gone_to[bucket][of] = to
            elif point == "moving.home_changed":
                self.gone_to[bucket].pop(of, None)
                self.places[bucket] = tuple(to if one == of else one for one in self.places[bucket])

        of = source if number == WIDE else None
        self.commands.append(SteppedCommand(partial(move, self.cells.settings, bucket, to, of), passed))
        self.commands[-1].go_to(stop)
        self.ended()

    @rule(
        number=st.sampled_from([0, 0, 1, WIDE, WIDE, WIDE]),
        which=st.integers(0, 1),
        few=st.booleans(),
        stop=st.sampled_from(STOPS),
    )
    def move_away(self, number: int, which: int, few: bool, stop: str) -> None:
        """Move a bucket, or what one cell has of the wide one, to a cell that has nothing of it, after what that still
        had of it was purged."""
        bucket = self.buckets[number]
        cells = sorted(set(self.places[bucket]))
        others = [cell for cell in CELLS if cell not in cells]
        to = others[which % len(others)]
        place = self.cells.system(to).metadata.move_row(bucket)
        if place is not None and place.state is MoveState.GONE:
            self.purge(bucket, to)
            self.metadata_dump(to)
        self.move(number, cells[which % len(cells)], to, few, stop)

    def purge(self, bucket: str, cell: str) -> None:
        """Delete the old copies of a bucket, once its cells are dumped."""
        place = self.cells.directory.metadata.directory_row(bucket)
        assert place is not None
        for home in place.cells:
            self.metadata_dump(home)
        with ExitStack() as stack:
            side, *others = [stack.enter_context(_opened(self.cells.settings, name)) for name in (cell, *place.cells)]
            there = [other.client.moving() for other in others]
            record = side.client.access_records().record
            found = answer_of(lambda: bucket_mover.purge(side.client.moving(), there, place, record))
        assert isinstance(found, int) or found in ("InvalidInput", "Conflict")

    def metadata_dump(self, cell: str) -> None:
        """Dump the metadata of a cell."""
        assert run(["--config", str(type(self).config), "--cell", cell, "metadata", "dump"]) == 0

    @rule(number=st.integers(0, COMMANDS_MAX - 1), steps=st.integers(1, 4))
    def advance(self, number: int, steps: int) -> None:
        """Let a command continue for a few steps."""
        if not self.commands:
            return
        command = self.commands[number % len(self.commands)]
        for _ in range(steps):
            if command.at:
                command.step()
        self.ended()

    @rule(
        number=st.integers(0, COMMANDS_MAX - 1), how=st.sampled_from(["continues", "continues", "is killed", "fails"])
    )
    def end(self, number: int, how: str) -> None:
        """Let a command come to its end, or kill it, or let it fail."""
        if not self.commands:
            return
        command = self.commands[number % len(self.commands)]
        if how == "is killed":
            command.kill()
        elif how == "fails":
            command.step(Transient("the database went away"))
        command.go_to("")
        self.ended()

    @rule()
    def take_for_dead(self) -> None:
        """Let the leases of all commands end, and let the daemons of all cells notice it."""
        for system in self.cells.opened().values():
            for lease in system.metadata.list_leases("move-"):
                assert system.metadata.fence_lease(lease, lease.expires_ms)
        for system in self.cells.opened().values():
            system.worker.move_recovery().run_once()

    def ended(self) -> None:
        """Forget the commands that have ended, which may not have failed for any other reason than these."""
        for command in self.commands:
            error = command.error
            if error is not None and not isinstance(error, Killed) and not REFUSALS.search(str(error)):
                raise AssertionError("a command of an operator failed") from error
        self.commands = [command for command in self.commands if command.at]

    # --- the other work ---------------------------------------------------------------------------
    @rule(what=st.sampled_from(["pack", "pack", "reap parts", "expire trash"]))
    def work(self, what: str) -> None:
        """Let producers, consumers and GC do what there is to do, in all cells. Buckets that take no changes keep what
        they have in the trash."""
        if what == "expire trash" and self.changeable() != self.buckets:
            return
        for store in type(self).stores:
            for system in store.systems:
                if what == "pack":
                    system.worker.housekeeping().run_once()
                    with producer_service(system) as producer:
                        producer.drain()
                    drain(system)
                    gc_service(system).run_once()
                elif what == "reap parts":
                    UploadReaper(system.metadata, LaterClock(PARTS_GRACE_MS + 60_000), 0).run_once()
                else:
                    TrashCan(system.metadata, LaterClock(2 * DAY)).expire()

    @rule(number=NUMBERS, which=st.integers(0, 3))
    def remember(self, number: int, which: int) -> None:
        """Let the process remember what it once knew about a bucket, or nothing about any, as a new one does."""
        bucket = self.buckets[number]
        rows = list(self.old_rows[bucket].values())
        if which < len(rows):
            self.cells._homes[bucket] = rows[which]
        else:
            self.cells._homes.clear()

    # --- what holds after each step ---------------------------------------------------------------
    @invariant()
    def objects_are_the_same(self) -> None:
        """Both stores have the same buckets and objects, which can be read."""
        readable = [bucket for bucket in self.buckets if self.is_in(bucket, READ)]
        self.same(lambda store: self.whole(store, readable), dict.fromkeys(readable, READ))
        for name in NAMES:
            key = f"{self.buckets[WIDE]}/{name}"
            self.same(partial(self.data, key), {key: READ})
        for begun in self.uploads:
            self.same(partial(self.parts, begun), of_object(begun.bucket, begun.key, READ))

    def data(self, key: str, store: Served) -> object:
        """The bytes of an object."""
        return store.library.get(key)

    def parts(self, begun: Begun, store: Served) -> object:
        """The parts of an unfinished upload."""
        return store.clients["ann"].list_parts(**begun.of(store)).get("Parts", [])

    def whole(self, store: Served, readable: Sequence[str]) -> object:
        """The names of these buckets, but for empty ones, and all objects with their bytes."""
        infos = [info for bucket in readable for info in store.library.list(bucket)]
        named = [name for name in store.library.buckets() if name in readable]
        return [named, infos, [store.library.get(info) for info in infos]]

    def owned(self, store: Served) -> object:
        """The buckets of each account that the directory knows."""
        ours = set(self.buckets) - self.unlisted
        return {
            account: [one["Name"] for one in client.list_buckets()["Buckets"] if one["Name"] in ours]
            for account, client in store.clients.items()
        }

    @invariant()
    def only_homes_have_objects(self) -> None:
        """Each bucket is where the commands have moved it, or the daemons have completed a move whose command died, and
        its objects can be read there alone."""
        for bucket in self.buckets:
            row = self.cells.directory.metadata.directory_row(bucket)
            if row is not None:
                found, gone_to = row.slices or (row.home,), self.gone_to[bucket]
                for cell, known in zip(found, self.places.get(bucket, found), strict=True):
                    assert cell in (known, gone_to.get(known))
                self.gone_to[bucket] = {cell: to for cell, to in gone_to.items() if cell in found}
                self.places[bucket] = found
                self.old_rows[bucket][found] = row
            for name, system in self.cells.opened().items():
                try:
                    names = system.client.store().list_names(bucket, "", "", 10)
                except Moved:
                    continue
                assert all(row is not None and row.cell_of(one) == name for one in names)

    def teardown(self) -> None:
        """Complete all moves, and compare everything, unless the history has failed."""
        has_failed = sys.exc_info()[0] is not None
        try:
            if not has_failed:
                self.complete_moves()
                self.compare_all()
        finally:
            for command in getattr(self, "commands", ()):
                command.kill()

    def complete_moves(self) -> None:
        """Let all commands end, daemons notice those that died, and an operator continue or give up what they left."""
        while self.commands:
            self.end(0, "continues")
        for system in self.cells.opened().values():
            system.worker.move_recovery().run_once()
        for name, system in self.cells.opened().items():
            for row in all_unfinished_moves(system.metadata):
                if row.bucket in self.buckets:
                    home = self.cells.directory.metadata.directory_row(row.bucket)
                    words = next_command(name, row, True, home).split()
                    to, source = words[words.index("--to") + 1], words[-1]  # with --from, or the same
                    self.move(self.buckets.index(row.bucket), source, to, few=False, stop="")
        for system in self.cells.opened().values():
            assert not [row for row in stalled_moves(system.metadata) if row.bucket in self.buckets]

    def compare_all(self) -> None:
        """Both stores have the same objects with all their versions, and the same in the trash; nothing is lost in any
        cell, and no check finds anything."""
        assert all(self.is_in(bucket, frozenset([MoveState.HERE])) for bucket in self.buckets)
        self.only_homes_have_objects()
        self.objects_are_the_same()
        for bucket in list(self.unlisted):
            self.delete_bucket(self.buckets.index(bucket), "ann", empty=False)
        self.same(self.owned, {})
        self.slices_are_marked()
        needed = dict.fromkeys(self.buckets, READ)
        self.same(lambda store: [self.all_versions(store, bucket) for bucket in sorted(self.exist)], needed)
        self.same(lambda store: [self.in_trash(store, bucket) for bucket in self.buckets], needed)
        self.same(lambda store: [self.unfinished(store, bucket) for bucket in sorted(self.exist)], needed)
        while self.uploads:
            self.end_upload(0, 0, aborts=False)
        self.objects_are_the_same()
        for store in type(self).stores:
            for system in store.systems:
                assert not problems(system.metadata, system.blocks, system.landing, system.medium)

    def slices_are_marked(self) -> None:
        """Each cell of the wide bucket, if that exists, has a row of it, and knows its slices: rules depend on it."""
        bucket = self.buckets[WIDE]
        found = self.cells.directory.metadata.directory_row(bucket)
        assert found is not None
        for cell in found.cells if bucket in self.exist else ():
            row, mark = self.cells.system(cell).metadata.unserved_bucket(bucket)
            assert row is not None
            assert mark is not None
            assert places_of(cell, decode_slices(mark)) == places_of(cell, found.slices)

    def all_versions(self, store: Served, bucket: str) -> object:
        """All versions and delete markers of a bucket, with their bytes and tags."""
        client, found = store.clients["ann"], list[object]()
        for one in versions_of(client, bucket):
            version = {"Bucket": bucket, "Key": one["Key"], "VersionId": one["VersionId"]}
            data = client.get_object(**version)["Body"].read() if "ETag" in one else None
            tags = client.get_object_tagging(**version)["TagSet"] if "ETag" in one else None
            found.append([settled(one), one["VersionId"] == "null", data, tags])
        return found

    def unfinished(self, store: Served, bucket: str) -> object:
        """The names of all unfinished uploads of a bucket."""
        return sorted(
            one["Key"] for one in store.clients["ann"].list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        )

    def in_trash(self, store: Served, bucket: str) -> object:
        """What is in the trash of a bucket, in all cells of a wide one."""
        systems = store.systems
        if store.cells is not None:
            place = store.cells.directory.metadata.directory_row(bucket)
            systems = tuple(store.cells.system(cell) for cell in place.cells) if place is not None else ()
        rows = [row for system in systems for page in trash_of(system.metadata, bucket) for row in page]
        return sorted((settled(info_of(row)) for row in rows), key=str)

    def body(self, size: int) -> bytes:
        """Bytes that no other object has."""
        self.bodies = getattr(self, "bodies", 0) + 1
        return (b"%08d" % self.bodies * (size // 8 + 1))[:size]


def versions_of(client: Any, bucket: str, key: str = "") -> list[dict[str, Any]]:
    """All versions of a bucket, or of one key, sorted by key, and the delete markers of each key after its versions. Of
    each kind, the newest is the first."""
    found = client.list_object_versions(Bucket=bucket, Prefix=key)
    entries = [one for kind in ("Versions", "DeleteMarkers") for one in found.get(kind, [])]
    return sorted((one for one in entries if key in ("", one["Key"])), key=lambda one: str(one["Key"]))


def test_cells_answer_like_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_mover, "CLOSED_MS_MAX", DAY)  # however long a command stands still
    monkeypatch.setattr(bucket_mover, "CLOSED_NAMES_MAX", 200)
    monkeypatch.setattr(multipart_operations, "PART_BYTES_MIN", 0)
    monkeypatch.setattr(http_server, "ACCESS_CACHE_MS", 0)  # so that no answer depends on how long a step takes
    with both(tmp_path) as found, standing_still():

        class Machine(StoreMachine):
            stores = found
            config = tmp_path / "cells.toml"

        modest = settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # to shrink a history that fails takes many minutes
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(Machine, settings=modest)
