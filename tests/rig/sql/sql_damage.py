"""What a SQL metadata store does with wrong counters and missing rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import delete, literal, update
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs

from nos_ec.adapters.sql.driver.failures import RefusedCheck
from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.sql.operator.totals import STORED
from nos_ec.adapters.sql.tables.schema import BLOCKS, OBJECTS, STORED_TOTALS, WAITING
from nos_ec.core.errors import Corrupt, NotFound, Transient
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.ports.metadata import StoredTotals
from tests.rig.fakes.metadata_bench import MetadataBench


class SqlDamage:
    """Define a fixture `metadata`, an empty SqlMetadata."""

    @pytest.fixture
    def bench(self, metadata: SqlMetadata) -> MetadataBench:
        """The metadata store under test, with shorthands."""
        return MetadataBench(metadata)

    def test_a_change_that_a_check_refuses_is_a_bug_and_not_tried_again(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        dialect: Any = metadata._engine.dialect
        if dialect.name == "mysql" and not dialect.is_mariadb and dialect.server_version_info < (8, 0, 16):
            pytest.skip("this MySQL parses CHECK and ignores it")
        row = bench.packed("n")
        metadata._transactions.write(lambda connection: connection.execute(update(BLOCKS).values(live_bytes=0)))
        with pytest.raises(RefusedCheck, match="counters of a block would be wrong"):
            bench.delete("n")
        with pytest.raises(RefusedCheck):
            bench.put("n", 2000)
        assert bench.get("n") == row

    @pytest.mark.parametrize(
        ("damage", "told"),
        [
            ({"state": literal("LOST")}, "'LOST', which is not a valid ObjectState"),
            ({"name": literal(b"n\xff")}, "is not UTF-8"),
        ],
    )
    def test_a_listing_tells_what_is_damaged(
        self, metadata: SqlMetadata, bench: MetadataBench, damage: dict[str, Any], told: str
    ) -> None:
        bench.put_all(["m", "n", "o"])
        damaged = update(OBJECTS).where(OBJECTS.c.name == "n").values(damage)
        if metadata._engine.dialect.name != "sqlite":  # the servers refuse the state, and store none if made to
            damaged, told = damaged.prefix_with("IGNORE"), told.replace("LOST", "")
        metadata._transactions.write(lambda connection: connection.execute(damaged))
        listings: list[Callable[[], object]] = [
            lambda: metadata.list_objects("bucket", "", "", 9),
            lambda: metadata.list_entries("bucket", "", "/", "", 9, 10**9),
            lambda: metadata.columns_after(0, 9),
        ]
        if "name" in damage:  # a summary does not tell the state
            listings.append(lambda: metadata.list_summaries("bucket", "", "/", "", 9, 10**9))
        for listing in listings:
            with pytest.raises(Corrupt, match=told):
                listing()

    @pytest.mark.parametrize(
        "damage",
        [
            lambda _: "",
            lambda _: "[]",
            lambda _: "{}",
            lambda _: "[" * 20_000,
            lambda text: text[:-1],
            lambda text: text + " ",
            lambda text: text.replace('"at_ms": 5', '"at_ms": "5"'),
            lambda text: text.replace('"large_objects": 0', '"large_objects": null'),
            lambda text: text.replace('[["', '[["other '),
            lambda text: text.replace('"at_ms"', '"of_ms"'),
        ],
    )
    def test_stored_totals_that_cannot_be_read_count_as_none_and_are_replaced(
        self, metadata: SqlMetadata, bench: MetadataBench, damage: Callable[[str], str]
    ) -> None:
        bench.packed("n")
        whole = StoredTotals(metadata.totals(), at_ms=5, cost_ms=6, next_ms=7)
        assert metadata.store_totals(whole, None)
        text = metadata._transactions.read(lambda connection: connection.execute(STORED).scalar_one())
        assert damage(text) != text
        metadata._transactions.write(
            lambda connection: connection.execute(update(STORED_TOTALS).values(value=damage(text)))
        )
        assert metadata.stored_totals() is None
        assert metadata.store_totals(whole, None)
        assert metadata.stored_totals() == whole

    def test_an_object_in_a_block_without_a_row_can_be_deleted_and_the_block_is_named(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        rows = [bench.packed(f"n{i}") for i in range(5)]
        lost = rows[2].extent
        assert lost is not None
        _lose(metadata, lost.block_id)
        with capture_logs() as logs:
            assert metadata.delete_many([row.key for row in rows], bench.now_ms) == rows
        (line,) = (line for line in logs if "damaged" in line["event"])
        assert line["blocks"] == [lost.block_id.hex()]
        with pytest.raises(NotFound):
            metadata.get(rows[2].key)
        bench.check_counters()

    def test_an_object_in_a_block_without_a_row_can_be_overwritten(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        lease = bench.lease()
        metadata.record_large(bench.large("n", lease), lease, bench.now_ms)
        placed = [
            segment.extent.block_id for segment in metadata.segments(bench.get("n").object_id, bench.get("n").version)
        ]
        _lose(metadata, placed[0])
        assert bench.put("n", 50).size == 50
        assert metadata.get(ObjectKey("bucket", "n")).size == 50
        assert metadata.block(placed[1]).live_bytes == 0
        bench.check_counters()

    @pytest.mark.parametrize("way", ["delete", "overwrite", "commit"])
    def test_objects_that_were_not_among_those_that_wait_are_not_stuck(
        self, metadata: SqlMetadata, bench: MetadataBench, way: str
    ) -> None:
        rows = [bench.put(f"n{i}") for i in range(5)]
        lost = WAITING.c.landing_id == rows[2].landing_id
        metadata._transactions.write(lambda connection: connection.execute(delete(WAITING).where(lost)))
        with capture_logs() as logs:
            if way == "delete":
                assert metadata.delete_many([row.key for row in rows], bench.now_ms) == rows
            elif way == "overwrite":
                bench.put_all([row.key.name for row in rows])
            else:
                bench.pack(rows)
        (line,) = (line for line in logs if "damaged" in line["event"])
        assert line["objects"] == 1
        assert len(bench.deletions()) == 5
        bench.check_counters()

    def test_two_objects_cannot_have_one_landing_copy(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        first, second = bench.put("n1"), bench.put("n2")
        same = update(WAITING).where(WAITING.c.object_id == first.object_id).values(landing_id=second.landing_id)
        with pytest.raises((Transient, IntegrityError), match=r"(?i)duplicate|unique"):
            metadata._transactions.write(lambda connection: connection.execute(same))
        bench.check_counters()


def _lose(metadata: SqlMetadata, block_id: BlockId) -> None:
    metadata._transactions.write(
        lambda connection: connection.execute(delete(BLOCKS).where(BLOCKS.c.block_id == block_id))
    )
