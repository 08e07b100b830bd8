"""A failover of the database from one real server to another. Clients know only an address that leads to the primary.

The old primary becomes read-only and cuts no connection: a process that keeps reading there misses what the new primary
has acknowledged. Replication is not part of it: the new primary gets the rows before it takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import count, pairwise

import pytest
from sqlalchemy import Engine, create_engine, event, insert, make_url, select
from sqlalchemy.pool import NullPool

from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.tables.schema import METADATA
from nos_ec.core.errors import Moved, NotFound, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.ports.metadata.directory import MoveRow, MoveState
from tests.real.conftest import start
from tests.rig.dev_servers import DevServer
from tests.rig.fakes.metadata_bench import MetadataBench, new_landing_id
from tests.rig.sql.sql_servers import empty_metadata
from tests.rig.switched_proxy import SwitchedProxy

pytestmark = pytest.mark.real

USER = {"mariadb": "nos_ec_client", "mysql": "root"}
"""MariaDB lets root write to a read-only server; MySQL, with super_read_only, lets no user write."""


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[DevServer]]:
    with ExitStack() as stack:
        pair = [DevServer(request.param, tmp_path_factory.mktemp(f"{request.param}-{number}")) for number in (1, 2)]
        for server in pair:
            start(server)
            stack.callback(server.stop)
            if server.name == "mariadb":
                user = f"{USER[server.name]}@'%%'"
                administer(server, f"CREATE USER IF NOT EXISTS {user}", f"GRANT ALL ON nos_ec.* TO {user}")
        yield pair


@dataclass
class Pair:
    """Two servers with the same rows, and an address that leads to the primary."""

    old: DevServer
    new: DevServer
    proxy: SwitchedProxy

    @property
    def url(self) -> str:
        return f"mysql+pymysql://{USER[self.old.name]}@127.0.0.1:{self.proxy.port}/nos_ec"

    def demote(self) -> None:
        """The old primary becomes read-only, and the new one has all rows. Connections stay open."""
        variable = "super_read_only" if self.old.name == "mysql" else "read_only"
        administer(self.old, f"SET GLOBAL {variable} = ON")
        copy_rows(engine(self.old), engine(self.new))

    def promote(self) -> None:
        """From now on the address leads to the new primary."""
        self.proxy.target = make_url(self.new.url).port or 0


@pytest.fixture
def pair(servers: list[DevServer]) -> Iterator[Pair]:
    old, new = servers
    for server in servers:
        with empty_metadata(server.url):
            pass
    proxy = SwitchedProxy(make_url(old.url).port or 0)
    with proxy.running():
        yield Pair(old, new, proxy)
    administer(old, "SET GLOBAL read_only = OFF")


@pytest.fixture(params=[False, True], ids=["whole", "cell"])
def metadata(request: pytest.FixtureRequest, pair: Pair) -> Iterator[SqlMetadata]:
    """The metadata of a store without cells, and of a cell, whose reads take the flags of the server together with the
    number of moves."""
    with closing(open_metadata(pair.url)) as metadata:
        if request.param:
            metadata.obey_moves(lambda _: None)
        yield metadata


def administer(server: DevServer, *statements: str) -> None:
    """Run statements, and nothing else: a node that is out of service refuses even ROLLBACK."""
    no_more = {"isolation_level": "AUTOCOMMIT", "skip_autocommit_rollback": True, "pool_reset_on_return": None}
    with create_engine(server.url, poolclass=NullPool, **no_more).connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def engine(server: DevServer) -> Engine:
    return create_engine(server.url, poolclass=NullPool)


def copy_rows(source: Engine, target: Engine) -> None:
    with source.connect() as reading, target.begin() as writing:
        for table in METADATA.sorted_tables:
            columns = [column for column in table.columns if column.computed is None]
            writing.execute(table.delete())
            rows = [dict(row._mapping) for row in reading.execute(select(*columns))]
            if rows:
                writing.execute(insert(table), rows)


def test_a_process_that_only_reads_sees_what_the_new_primary_acknowledged(pair: Pair, metadata: SqlMetadata) -> None:
    with closing(open_metadata(pair.url)) as first:
        MetadataBench(first).put("n", 100)
    key = ObjectKey("bucket", "n")
    assert metadata.get(key).size == 100
    assert [row.size for row in metadata.list_objects("bucket", "", "", 9)] == [100]
    pair.demote()
    pair.promote()
    with closing(open_metadata(pair.url)) as other:
        bench = MetadataBench(other)
        second = bench.put("n", 200)
        new = bench.put("new", 300)
    assert metadata.get(key) == second
    assert metadata.list_objects("bucket", "", "", 9) == [second, new]
    assert new.landing_id is not None
    assert metadata.landing_needed([new.landing_id]) == {new.landing_id}
    assert metadata.get(new.key) == new


def test_a_process_that_writes_reads_its_own_writes(pair: Pair, metadata: SqlMetadata) -> None:
    bench = MetadataBench(metadata)
    first = bench.put("n", 100)
    assert metadata.get(first.key) == first
    pair.demote()
    pair.promote()
    second = bench.put("n", 200)
    assert metadata.get(first.key) == second
    assert bench.delete("n") == second
    with pytest.raises(NotFound):
        metadata.get(first.key)


def test_rows_that_a_read_only_server_lacks_are_not_reported_as_missing(pair: Pair, metadata: SqlMetadata) -> None:
    """A look-up, a delete and a renewal that find nothing write nothing, so no server refuses them."""
    bench = MetadataBench(metadata)
    bench.put("n")
    pair.demote()
    with closing(open_metadata(pair.new.url)) as other:
        new = MetadataBench(other).put("new", 300)
        lease = other.acquire_lease("w", bench.now_ms, 1000)
    before = bench.now_ms
    for call in (
        lambda: metadata.get(new.key),
        lambda: metadata.list_names("bucket", "", "", 9),
        lambda: metadata.bucket("bucket"),
        lambda: metadata.delete(new.key, before),
        lambda: metadata.delete_many([new.key], before),
        lambda: metadata.renew_lease(lease, before, 1000),
        lambda: metadata.landing_needed([new.landing_id or new_landing_id()]),
    ):
        with pytest.raises(Transient, match="read-only"):
            call()
    pair.promote()
    assert metadata.get(new.key) == new
    assert metadata.delete_many([new.key], before) == [new]


def test_a_listing_during_which_the_primary_is_replaced_is_repeated(pair: Pair, metadata: SqlMetadata) -> None:
    """The old primary has answered with the rows, and becomes read-only before it confirms them."""
    first = MetadataBench(metadata).put("n")
    statements = count()

    def fail_over(*_: object) -> None:
        if next(statements) == 0:
            pair.demote()
            pair.promote()
            with closing(open_metadata(pair.url)) as other:
                MetadataBench(other).put("new")

    reading = metadata._transactions.reading
    assert reading is not None
    event.listen(reading, "after_cursor_execute", fail_over)
    assert metadata.list_names("bucket", "", "", 9) == [first.key.name, "new"]


def test_a_bucket_that_was_moved_after_a_failover_is_not_read(pair: Pair, metadata: SqlMetadata) -> None:
    metadata.obey_moves(lambda _: None)
    MetadataBench(metadata).put("n")
    here = MoveRow("bucket", MoveState.HERE, "b", 1, 1, 1)
    metadata.set_move(here, None)
    assert metadata.list_names("bucket", "", "", 9) == ["n"]
    pair.demote()
    with closing(open_metadata(pair.new.url)) as other:
        leaving = replace(here, state=MoveState.LEAVING)
        for known, row in pairwise([here, leaving, replace(here, state=MoveState.GONE)]):
            other.set_move(row, known)
    with pytest.raises(Transient, match="read-only"):
        metadata.list_names("bucket", "", "", 9)
    pair.promote()
    for read in (
        lambda: metadata.list_names("bucket", "", "", 9),
        lambda: metadata.get(ObjectKey("bucket", "n")),
        lambda: metadata.delete(ObjectKey("bucket", "n"), 5),
    ):
        with pytest.raises(Moved):
            read()


def test_connections_of_all_pools_are_closed_together(pair: Pair, metadata: SqlMetadata) -> None:
    bench = MetadataBench(metadata)
    bench.put("n")
    bench.get("n")
    metadata.list_buckets("", 9)
    pair.demote()
    pair.promote()
    with closing(open_metadata(pair.url)) as other:
        other_bench = MetadataBench(other)
        other_bench.put("n", 200)
    bench.put("m")
    assert clients(pair.old) == 0, "one pool still has a connection to the old primary"
    assert bench.get("n").size == 200


def clients(server: DevServer) -> int:
    with engine(server).connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'nos_ec' AND id <> CONNECTION_ID()"
        )
        return int(found.scalar_one())


def test_a_server_that_stays_read_only_is_named(pair: Pair, metadata: SqlMetadata) -> None:
    row = MetadataBench(metadata).put("n")
    pair.demote()
    with pytest.raises(Transient, match=rf"127\.0\.0\.1:{pair.proxy.port}.*read-only"):
        metadata.get(row.key)
    with pytest.raises(Transient, match="read-only"):
        metadata.expired_leases(0)  # what /readyz asks
    administer(pair.old, "SET GLOBAL read_only = OFF")
    assert metadata.get(row.key) == row


def test_a_replica_is_read_on_request(pair: Pair, metadata: SqlMetadata) -> None:
    row = MetadataBench(metadata).put("n")
    pair.demote()
    with closing(open_metadata(pair.url, replica=True)) as replica:
        assert replica.get(row.key) == row
        assert replica.list_objects("bucket", "", "", 9) == [row]
        with pytest.raises(NotFound):
            replica.get(ObjectKey("bucket", "other"))
        with pytest.raises(Transient, match="read-only"):
            replica.delete(row.key, 5)
