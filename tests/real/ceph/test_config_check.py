"""`nos-ec config check --connect` on real servers: right, wrong, away and paused. It names what is wrong, and nothing
else; it tries the rest; it ends in time; and it leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import pytest

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.sql.connection_check import DatabaseCheck
from nos_ec.adapters.sql.tables.migrate import schema_head
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.core.errors import ConfigError
from tests.real.ceph.test_wrong_configurations import CONFIGURATION, TRANSIENT, Store, sql
from tests.rig.ceph_cluster import CephCluster
from tests.rig.dev_servers import DevServer

pytestmark = pytest.mark.real

CEPH_AWAY = {"CEPH__OP_TIMEOUT_MS": "2000"}
KAFKA_AWAY = {"KAFKA__OPTIONS": '{"socket.timeout.ms": 2000}'}
"""Time limits for servers that are away. Those that are there may take longer, because the machine may be busy."""
END_S_MAX = 300.0
"""More than the time limits of all servers together."""
DATABASE = {"database", *(f"database {part}" for part in ("session", "clock", "schema", "rights", "store"))}
CEPH = {
    "Ceph",
    *(f"Ceph {part}" for part in ("blocks pool", "landing pool", "blocks access", "landing access", "landing log")),
    "Ceph clocks",
}
CEPH |= {"free space", "store identity"}
KAFKA = {"Kafka topics", "Kafka rights", "Kafka group"}
AUDIT = {"audit trail"}
ALL = DATABASE | CEPH | KAFKA | AUDIT


@dataclass(frozen=True)
class Checked:
    """How the command ended, and what it said of each check: (result, detail)."""

    code: int
    said: dict[str, tuple[str, str]]
    initialised: bool | None
    stderr: str

    def names(self, result: str) -> set[str]:
        return {name for name, (found, _) in self.said.items() if found == result}


def check(store: Store, changes: Mapping[str, str]) -> Checked:
    """Run the command; it must end within its time limits, without a traceback, and try or explain every check."""
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "nos_ec", "config", "check", "--connect", "--json"],
        env=store.environment(changes),
        cwd=store.folder,
        capture_output=True,
        text=True,
        timeout=END_S_MAX,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert time.monotonic() - began_s < END_S_MAX
    data = json.loads(done.stdout)
    said = {one["name"]: (one["result"], one["detail"]) for one in data["checks"]}
    assert said.keys() == ALL
    if done.returncode:
        assert json.loads(done.stderr.splitlines()[-1])["exit_code"] == done.returncode
    return Checked(done.returncode, said, data["initialised"], done.stderr)


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, ceph: CephCluster, kafka: DevServer, mysql_server: DevServer
) -> Iterator[Store]:
    """An initialised store, and another one on the same servers, `_other`; `_bare` is an empty database."""
    store = Store(tmp_path_factory.mktemp("check"), ceph, kafka.url, mysql_server.url)
    databases = [store.name, f"{store.name}_other", f"{store.name}_bare"]
    sql(mysql_server.url, *(f"CREATE DATABASE {name}" for name in databases))
    for name in databases[:2]:
        changes = {"STORE__METADATA_URL": store.database(name), "CEPH__NAMESPACE": name, "KAFKA__TOPIC": name}
        done = store.run("init", changes)
        assert done.code == 0, done.stderr
    yield store
    store.assert_works()
    sql(mysql_server.url, *(f"DROP DATABASE {name}" for name in databases))


def test_all_is_well(store: Store) -> None:
    found = check(store, {})
    assert {name: said for name, said in found.said.items() if said[0] != "ok"} == {}
    assert (found.code, found.initialised) == (0, True)
    assert "MySQL" in found.said["database"][1]
    assert found.said["Ceph blocks access"][1] == "written, read and removed a probe"
    assert "READ" in found.said["Kafka rights"][1]
    with RadosCluster(store.ceph.options("consumer")) as cluster:
        for name in ("nos-ec-blocks", "nos-ec-landing"):
            with cluster.open_pool(name, store.name) as pool:
                assert [one for one in pool.names() if "probe" in one] == []


def test_mariadb(store: Store, mariadb_url: str) -> None:
    """The store is not initialised: the server and what it allows are tried, and no table is expected."""
    name = f"check{uuid.uuid4().hex[:8]}"
    sql(mariadb_url, f"CREATE DATABASE {name}")
    new = {"CEPH__NAMESPACE": f"{name}", "KAFKA__TOPIC": name}
    found = check(store, {"STORE__METADATA_URL": f"{mariadb_url.rpartition('/')[0]}/{name}", **new})
    sql(mariadb_url, f"DROP DATABASE {name}")
    assert (found.code, found.initialised, found.names("failed")) == (0, False, set()), found
    assert found.names("ok") == {"database", "database session", "database clock"} | (CEPH - {"store identity"}) | AUDIT
    assert "MariaDB" in found.said["database"][1]
    for name in ("database schema", "store identity", "Kafka topics"):
        assert "run `nos-ec init`" in found.said[name][1]


@pytest.mark.parametrize(
    ("changes", "failed", "words"),
    [
        ({"CEPH__BLOCKS_POOL": "nowhere"}, "Ceph blocks pool", "has no pool nowhere"),
        ({"CEPH__BLOCKS_POOL": "nos-ec-landing"}, "Ceph blocks pool", "is not erasure-coded"),
        ({"CEPH__LANDING_POOL": "nos-ec-blocks"}, "Ceph landing pool", "is erasure-coded"),
        ({"CEPH__USER": "client.nobody"}, "Ceph", "client.nobody"),
        ({"CEPH__CONF_FILE": "/nowhere/ceph.conf"}, "Ceph", "does not exist"),
        ({"CEPH__KEYRING_FILE": "/nowhere/keyring"}, "Ceph", "does not exist"),
        ({"KAFKA__TOPIC": "nowhere"}, "Kafka topics", "run `nos-ec init`"),
        ({"LOG__PARTITIONS": "5"}, "Kafka topics", "set log.partitions to 3"),
        ({"KAFKA__OPTIONS": '{"acks": "1"}'}, "Kafka topics", "remove it from the Kafka options"),
    ],
)
def test_one_wrong_setting(store: Store, changes: Mapping[str, str], failed: str, words: str) -> None:
    found = check(store, changes)
    assert (found.code, found.names("failed")) == (CONFIGURATION, {failed}), found
    assert words in found.said[failed][1]
    assert "settings: " in found.said[failed][1]
    mine = next(group for group in (CEPH, KAFKA) if failed in group)
    assert found.names("ok") >= ALL - mine, "the rest is tried"
    for name in found.names("not tried"):
        assert found.said[name][1].startswith("needs: "), found


def test_wrong_databases(store: Store) -> None:
    def at(database: str, password: str = "") -> Checked:
        return check(store, {"STORE__METADATA_URL": store.database(database).replace("root@", f"root{password}@")})

    wrong = at(store.name, ":hunter2")
    assert (wrong.code, wrong.names("failed")) == (CONFIGURATION, {"database"})
    assert "check user and password" in wrong.said["database"][1]
    assert "hunter2" not in str(wrong)
    missing = at(f"{store.name}_nowhere")
    assert "CREATE DATABASE" in missing.said["database"][1]
    assert missing.names("failed") == {"database"}
    other = at(f"{store.name}_other")
    assert (other.code, other.names("failed"), other.initialised) == (CONFIGURATION, {"store identity"}, True)
    assert "holds another store" in other.said["store identity"][1]
    bare = at(f"{store.name}_bare")
    assert (bare.code, bare.names("failed"), bare.initialised) == (CONFIGURATION, {"store identity"}, False)
    assert "the metadata is new and empty" in bare.said["store identity"][1]
    assert bare.names("ok") >= KAFKA


def test_another_namespace_and_geometry(store: Store) -> None:
    found = check(store, {"CEPH__NAMESPACE": f"{store.name}_nowhere"})
    assert (found.code, found.names("failed")) == (CONFIGURATION, {"store identity"})
    assert "holds no store" in found.said["store identity"][1]
    found = check(store, {"GEOMETRY__STRIPES_PER_BLOCK": "16"})
    assert (found.code, found.names("failed")) == (CONFIGURATION, {"database store"})


def test_the_schema_of_a_newer_release(store: Store) -> None:
    url = store.database(f"{store.name}_other")
    sql(url, "UPDATE alembic_version SET version_num = '9999'")
    found = check(store, {"STORE__METADATA_URL": url, "CEPH__NAMESPACE": f"{store.name}_other"})
    sql(url, f"UPDATE alembic_version SET version_num = '{schema_head()}'")
    assert (found.code, found.names("failed")) == (CONFIGURATION, {"database schema"})
    assert "a newer release created it" in found.said["database schema"][1]


def test_rights_are_told(store: Store) -> None:
    options, user = store.ceph.options("reader"), store.name[:16]
    sql(store.url, f"CREATE USER '{user}'@'%'", f"GRANT SELECT ON `{store.name}`.* TO '{user}'@'%'")
    changes = {
        "STORE__METADATA_URL": store.database(store.name).replace("root@", f"{user}@"),
        "CEPH__USER": options.user,
        "CEPH__KEYRING_FILE": str(options.keyring_file),
    }
    found = check(store, changes)
    assert (found.code, found.names("failed")) == (0, set()), found
    assert found.said["database rights"][1] == "allowed: SELECT on all tables; nothing else"
    assert found.said["Ceph blocks access"][1] == found.said["Ceph landing access"][1] == "the user may only read"
    sql(store.url, f"GRANT INSERT, UPDATE, DELETE ON `{store.name}`.blocks TO '{user}'@'%'")
    sql(store.url, f"GRANT UPDATE (state, due_ms) ON `{store.name}`.waiting TO '{user}'@'%'")
    assert check(store, changes).said["database rights"][1] == (
        "allowed: SELECT on all tables; INSERT on blocks; UPDATE on blocks, waiting (due_ms, state);"
        " DELETE on blocks; nothing else"
    )
    sql(store.url, f"DROP USER '{user}'@'%'")


def test_servers_that_are_away(store: Store) -> None:
    (store.folder / "dead.conf").write_text("[global]\nmon_host = [v2:127.0.0.1:1]\n")
    changes = {
        "STORE__METADATA_URL": "mysql+pymysql://root@127.0.0.1:1/nos_ec",
        "CEPH__CONF_FILE": "dead.conf",
        "KAFKA__SERVERS": "127.0.0.1:1",
        **CEPH_AWAY,
        **KAFKA_AWAY,
    }
    found = check(store, changes)
    assert (found.code, found.names("failed")) == (TRANSIENT, {"database", "Ceph", "Kafka topics"})
    assert (found.initialised, found.names("ok")) == (None, AUDIT)
    assert found.said["store identity"] == ("not tried", "needs: Ceph blocks pool, Ceph landing pool")


def test_a_paused_database_takes_its_time_limit_and_no_more(store: Store, mysql_server: DevServer) -> None:
    mysql_server.put_to_sleep()
    try:
        found = check(store, {})
    finally:
        mysql_server.wake()
    assert (found.code, found.names("failed")) == (TRANSIENT, {"database"})
    assert "no greeting within 10 s" in found.said["database"][1]
    assert (CEPH - {"store identity"}) | KAFKA | AUDIT == found.names("ok")


def test_paused_brokers(store: Store, kafka: DevServer) -> None:
    kafka.put_to_sleep()
    try:
        found = check(store, KAFKA_AWAY)
    finally:
        kafka.wake()
    assert (found.code, found.names("failed")) == (TRANSIENT, {"Kafka topics"})
    assert found.names("ok") == DATABASE | CEPH | AUDIT


def test_a_paused_monitor(store: Store) -> None:
    with store.ceph.monitor_hung():
        found = check(store, CEPH_AWAY)
    assert found.code == TRANSIENT
    assert found.names("failed") == {"Ceph"}, found
    assert found.names("ok") == DATABASE | KAFKA | AUDIT


def test_the_worst_failure_decides(store: Store) -> None:
    """A server that is away may come back; a pool of the wrong shape needs a person."""
    found = check(store, {"KAFKA__SERVERS": "127.0.0.1:1", "CEPH__BLOCKS_POOL": "nowhere", **KAFKA_AWAY})
    assert (found.code, found.names("failed")) == (CONFIGURATION, {"Kafka topics", "Ceph blocks pool"})
    assert "nowhere" in json.loads(found.stderr.splitlines()[-1])["message"]


@pytest.mark.parametrize(("shift_ms", "says"), [(0, None), (60_000, "behind"), (-60_000, "ahead of"), (3_000, None)])
def test_clocks_are_compared(store: Store, shift_ms: int, says: str | None) -> None:
    """shift_ms: by how much this machine's clock is ahead of the server's."""

    class Shifted(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + shift_ms

    with closing(DatabaseCheck(store.database(store.name), replica=False)) as trial:
        trial.connect()
        if says is None:
            assert trial.clock(Shifted()).endswith(" ms apart")
        else:
            with pytest.raises(ConfigError, match=rf"s {says} this machine's; synchronise both"):
                trial.clock(Shifted())


def test_a_packet_size_that_is_too_small(store: Store) -> None:
    sql(store.url, "SET GLOBAL max_allowed_packet = 1048576")
    try:
        found = check(store, {})
    finally:
        sql(store.url, "SET GLOBAL max_allowed_packet = 67108864")
    assert (found.code, found.names("failed")) == (CONFIGURATION, {"database session"})
    assert "set it to 16777216 or more" in found.said["database session"][1]


def test_a_read_only_server(store: Store) -> None:
    """A user without administrator's rights, who cannot write there whatever is granted."""
    user = store.name[:16]
    sql(store.url, f"CREATE USER '{user}'@'%'", f"GRANT ALL ON `{store.name}`.* TO '{user}'@'%'")
    changes = {"STORE__METADATA_URL": store.database(store.name).replace("root@", f"{user}@")}
    sql(store.url, "SET GLOBAL read_only = 1")
    try:
        found = check(store, changes)
        replica = check(store, changes | {"STORE__METADATA_REPLICA": "true"})
    finally:
        sql(store.url, "SET GLOBAL read_only = 0", f"DROP USER '{user}'@'%'")
    assert (found.code, found.names("failed")) == (TRANSIENT, {"database"})
    assert "this server is read-only" in found.said["database"][1]
    assert (replica.code, replica.names("failed")) == (0, set())
    assert replica.said["database rights"][1] == "allowed: SELECT on all tables; nothing else"
