"""A row whose transaction commits after newer ones were published is found by the next scan for due objects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import insert

from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.sql.tables.schema import OBJECTS, WAITING
from nos_ec.core.ids import ObjectKey
from nos_ec.core.publishing.slots import ALL_SLOTS, bucket_slot
from nos_ec.core.states import ObjectState
from tests.rig.fakes.metadata_bench import MetadataBench, new_landing_id
from tests.rig.sql.sql_servers import empty_metadata

pytestmark = pytest.mark.real


@pytest.fixture(params=["mysql_url", "mariadb_url"])
def metadata(request: pytest.FixtureRequest) -> Iterator[SqlMetadata]:
    with empty_metadata(request.getfixturevalue(request.param)) as metadata:
        yield metadata


def test_a_late_commit_is_due_like_any_other(metadata: SqlMetadata) -> None:
    bench = MetadataBench(metadata)
    both = {"size": 1, "state": ObjectState.LANDED, "landing_id": new_landing_id()}
    late = both | {
        "bucket": "late",
        "name": "n",
        "version": 1,
        "crc32c": 1,
        "md5": bytes(16),
        "created_ms": bench.now_ms - 1000,
    }
    waits = both | {"slot": bucket_slot("late"), "due_ms": bench.now_ms - 1000}
    newer = [bench.put("newer", bucket=bucket) for bucket in ("a", "late", "b")]
    with metadata._engine.connect() as connection:
        made = connection.execute(insert(OBJECTS).values(late)).inserted_primary_key
        assert made is not None
        connection.execute(insert(WAITING).values(waits | {"object_id": made[0]}))
        due = metadata.due_objects(bench.now_ms, 10, ALL_SLOTS)
        assert due == newer, "a transaction in the middle neither shows nor holds anybody up"
        connection.commit()
    metadata.mark_published(due, bench.now_ms + 99)
    assert [row.key for row in metadata.due_objects(bench.now_ms, 10, ALL_SLOTS)] == [ObjectKey("late", "n")]
