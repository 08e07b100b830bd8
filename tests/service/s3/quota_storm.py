"""A process that does to a bucket with a quota whatever clients do, until it is killed: a program for storms.

usage: quota_storm.py CONFIG SEED

It prints a line with the time in seconds, the operation, and the bytes that it has added to the bucket, for each that
was acknowledged; a refused one has `refused` and 0.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from random import Random

from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import Conflict, NosError, NotFound, QuotaExceeded
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import Versioning
from nos_ec.engine.objects.uploads import StoredPart
from nos_ec.ports.metadata import AddMarker, DeleteVersion, PutRequest
from nos_ec.settings import load_settings

BUCKET = "storm"
NAMES = 30
LARGE = 200_000
"""The size of an object with blocks of its own."""


class Storm:
    """Random operations. Each returns the bytes that it has added."""

    def __init__(self, system: System, chance: Random) -> None:
        self._store = system.client.store()
        self._uploads = system.client.uploads(self._store)
        self._trash = system.client.trash()
        self._chance = chance
        self.operations: tuple[Callable[[], int], ...] = (
            *[self.put] * 6, self.put_version, self.put_version, self.put_large, self.put_many, self.delete,
            self.delete_versions, self.rename, self.undelete, self.upload, self.upload,
        )  # fmt: skip

    def put(self) -> int:
        size = self._chance.choice((0, 1, self._chance.randrange(30_000)))
        return self._store.put_request(PutRequest(self._key(), length=size), BytesIO(bytes(size))).size

    def put_version(self) -> int:
        size = self._chance.randrange(5_000)
        versioning = self._chance.choice(list(Versioning))
        return self._store.put(self._key(), BytesIO(bytes(size)), versioning=versioning).size

    def put_large(self) -> int:
        length = self._chance.choice((LARGE, None))
        return self._store.put_request(PutRequest(self._key(), length=length), BytesIO(bytes(LARGE))).size

    def put_many(self) -> int:
        rows = self._store.put_many([(self._key(), bytes(100)) for _ in range(8)])
        return sum(row.size for row in rows)

    def delete(self) -> int:
        self._store.delete_many([self._key() for _ in range(4)], permanently=self._chance.random() < 0.5)
        return 0

    def delete_versions(self) -> int:
        key = self._key()
        page = self._store.list_versions(BUCKET, key.name, "", ("", None), 5, 1000)
        deletions: list[DeleteVersion | AddMarker] = [
            DeleteVersion(one.key, None if one.is_null else one.version)
            for one in page.entries
            if not isinstance(one, str)
        ]
        self._store.delete_versions([*deletions, AddMarker(self._key(), Versioning.ENABLED)])
        return 0

    def rename(self) -> int:
        row = self._store.head(self._key())
        versioning = self._chance.choice((None, Versioning.ENABLED))
        request = PutRequest(self._key(), versioning=versioning, length=row.size)
        self._store.rename(row, request, lambda it: self._store.put_request(it, BytesIO(bytes(row.size))))
        return row.size if versioning else 0

    def undelete(self) -> int:
        return self._trash.undelete(self._trash.find(self._key())).size

    def upload(self) -> int:
        upload = self._uploads.create(self._key(), "ann", b"")
        added = 0
        for number in (1, 2, 2, 3):
            size = self._chance.randrange(20_000)
            with suppress(QuotaExceeded):
                added += self._uploads.put_part(upload, number, BytesIO(bytes(size)), b"").size
        if self._chance.random() < 0.3:
            self._uploads.abort(upload.upload_id, upload.key)
            return added

        def choose(parts: Sequence[StoredPart]) -> tuple[Sequence[StoredPart], Mapping[str, str]]:
            if not parts:
                raise NotFound("no part was stored")
            return parts[:2], {}

        return added + self._uploads.complete(upload, choose).size

    def _key(self) -> ObjectKey:
        return ObjectKey(BUCKET, f"k{self._chance.randrange(NAMES)}")


def main(config: str, seed: int) -> None:
    with open_system(load_settings(Path(config), {})) as system:
        chance = Random(seed)
        storm = Storm(system, chance)
        while True:
            operation = chance.choice(storm.operations)
            try:
                print(f"{time.time():.3f} {operation.__name__} {operation()}", flush=True)
            except QuotaExceeded:
                print(f"{time.time():.3f} refused 0", flush=True)
            except (NotFound, Conflict):
                pass
            except NosError as error:
                print(f"{time.time():.3f} {type(error).__name__} 0", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
