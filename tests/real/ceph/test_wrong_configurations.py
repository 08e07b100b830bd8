"""What an operator gets wrong, and servers that are not there: every command says what to do, with its exit code.

The real command line against real servers. Each case changes one thing of a configuration that works.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.rig.ceph_cluster import CephCluster
from tests.rig.dev_servers import DevServer, free_port

pytestmark = pytest.mark.real

CONFIGURATION, TRANSIENT = 3, 7
"""Exit codes (docs/CLI.md)."""
COMMANDS = {
    "producer": ["producer"],
    "consumer": ["consumer"],
    "gc": ["gc", "run", "--apply", "--loop"],
    "api": ["api"],
    "status": ["status"],
    "init": ["init"],
    "put": ["put", "bucket/name", __file__],
}
TIMEOUT_MS = 2_000
"""The time-out for a server that is away. A server that is there may take longer, because the machine may be busy."""
QUICK_S = 60.0
"""More than the time-outs of all servers together, on a machine that is busy ten times over."""
PARTITIONS = 3


@dataclass(frozen=True)
class Done:
    """How a command ended. `message`: the last line of its standard error, where its error is."""

    code: int
    message: str
    stderr: str
    seconds: float


class Store:
    """An initialised store on the real servers, and a second one on the same servers."""

    def __init__(self, folder: Path, ceph: CephCluster, servers: str, url: str) -> None:
        self.folder = folder
        self.ceph = ceph
        self.servers = servers
        self.url = url
        self.name = f"wrong{uuid.uuid4().hex[:8]}"
        options = ceph.options("consumer")
        self.settings = {
            "STORE__BACKEND": "ceph",
            "STORE__METADATA_URL": self.database(self.name),
            "CEPH__CONF_FILE": str(options.conf_file),
            "CEPH__USER": options.user,
            "CEPH__KEYRING_FILE": str(options.keyring_file),
            "CEPH__NAMESPACE": self.name,
            "LOG__BACKEND": "kafka",
            "LOG__PARTITIONS": str(PARTITIONS),
            "KAFKA__SERVERS": servers,
            "KAFKA__TOPIC": self.name,
            "KAFKA__REPLICATION": "1",
            "KAFKA__IN_SYNC_MIN": "1",
            "API__ANONYMOUS": "true",
            "AUDIT__FOLDER": str(folder / "audit"),
        }

    def database(self, name: str) -> str:
        """The URL of a database on the same server."""
        return self.url.rpartition("/")[0] + f"/{name}"

    def environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("NOS_EC_")}
        return clean | {f"NOS_EC_{key}": value for key, value in {**self.settings, **changes}.items()}

    def run(self, command: str, changes: Mapping[str, str]) -> Done:
        """Run a command until it ends by itself. A command that runs too long is killed, and fails the test."""
        return self.run_program([sys.executable, "-m", "nos_ec"], command, changes)

    def run_program(self, program: list[str], command: str, changes: Mapping[str, str]) -> Done:
        started_s = time.monotonic()
        process = subprocess.Popen(
            [*program, *COMMANDS[command], "--json"],
            env=self.environment(changes),
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, stderr = process.communicate(timeout=QUICK_S)
        except subprocess.TimeoutExpired:
            process.kill()
            stderr = f"still running after {QUICK_S} s\n" + process.communicate()[1]
        message = stderr
        with suppress(ValueError, IndexError, KeyError):
            message = json.loads(stderr.splitlines()[-1])["message"]
        return Done(process.returncode, message, stderr, time.monotonic() - started_s)

    def keyring(self, name: str, content: str) -> str:
        """A file that a case can name."""
        path = self.folder / name
        path.write_text(content)
        return str(path)

    def assert_works(self) -> None:
        """The right configuration works, even after all attempts with wrong ones."""
        for command in ("init", "put", "status"):
            done = self.run(command, {})
            assert done.code == 0, done.stderr


def sql(url: str, *statements: str) -> None:
    """Run statements as the server's administrator."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, ceph: CephCluster, kafka: DevServer, mysql_url: str
) -> Iterator[Store]:
    store = Store(tmp_path_factory.mktemp("wrong"), ceph, kafka.url, mysql_url)
    other = {
        "STORE__METADATA_URL": store.database(f"{store.name}_other"),
        "CEPH__NAMESPACE": f"{store.name}_other",
        "KAFKA__TOPIC": f"{store.name}_other",
    }
    databases = [store.name, f"{store.name}_other", f"{store.name}_bare"]
    sql(mysql_url, *(f"CREATE DATABASE {name}" for name in databases))
    for changes in ({}, other):
        done = store.run("init", changes)
        assert done.code == 0, done.stderr
    yield store
    store.assert_works()
    sql(mysql_url, *(f"DROP DATABASE {name}" for name in databases))


@pytest.fixture(scope="module")
def pools(ceph: CephCluster) -> Iterator[dict[str, str]]:
    """Unsuitable pools, by what is wrong with them."""
    tag = uuid.uuid4().hex[:8]
    names = {kind: f"wrong-{kind}-{tag}" for kind in ("4+2", "chunk", "overwrites")}
    shapes = {"4+2": (4, 2, 131_072), "chunk": (8, 3, 65_536), "overwrites": (8, 3, 131_072)}
    for kind, (k, m, unit) in shapes.items():
        profile = [f"k={k}", f"m={m}", f"stripe_unit={unit}", "crush-failure-domain=osd"]
        ceph.admin.command("osd erasure-code-profile set", name=names[kind], profile=profile)
        ceph.admin.command(
            "osd pool create",
            pool=names[kind],
            pg_num=1,
            pool_type="erasure",
            erasure_code_profile=names[kind],
        )
    ceph.admin.command("osd pool set", pool=names["overwrites"], var="allow_ec_overwrites", val="true")
    yield names
    for name in names.values():
        ceph.admin.command("osd pool delete", pool=name, pool2=name, yes_i_really_really_mean_it=True)


@dataclass(frozen=True)
class Case:
    """A command with `changes` to the right settings, which ends with `code` and an error that contains `words`."""

    command: str
    changes: Mapping[str, str]
    words: Sequence[str] = ()
    code: int = CONFIGURATION


def assert_reported(store: Store, *cases: Case) -> None:
    """Each case ends as documented, soon, with its words and without a traceback. Two run at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        ended = list(pool.map(lambda case: store.run(case.command, case.changes), cases))
    assert [(case, done) for case, done in zip(cases, ended, strict=True) if not tells(done, case)] == []


def tells(done: Done, case: Case) -> bool:
    return (
        done.code == case.code
        and "Traceback" not in done.stderr
        and all(word in done.message for word in case.words)
        and done.seconds < QUICK_S
    )


def test_a_wrong_key_ends_every_command(store: Store) -> None:
    keyring = store.keyring(
        "forged.keyring", f"[{store.settings['CEPH__USER']}]\nkey = AQBEjWBnAAAAABAAfc8ZqVzLQy1ZzZ2yCwCNZg==\n"
    )
    words = ("does not accept client.nos-ec-consumer", keyring, "ceph.keyring_file")
    assert_reported(store, *(Case(command, {"CEPH__KEYRING_FILE": keyring}, words) for command in COMMANDS))


def test_invalid_keyrings(store: Store) -> None:
    paths = {
        "consumer": store.keyring("empty.keyring", ""),
        "gc": store.keyring("garbage.keyring", "not a keyring"),
        "producer": str(store.folder / "absent.keyring"),
    }
    assert_reported(
        store,
        *(Case(command, {"CEPH__KEYRING_FILE": path}, (path, "ceph.keyring_file")) for command, path in paths.items()),
    )


def test_mismatched_settings(store: Store) -> None:
    assert_reported(
        store,
        Case("api", {"CEPH__USER": "client.nobody"}, ("does not accept client.nobody", "ceph.user")),
        Case("status", {"CEPH__USER": "nos-ec"}, ("use its full name", "ceph.user")),
        Case("consumer", {"CEPH__CONF_FILE": "absent.conf"}, ("absent.conf does not exist", "ceph.conf_file")),
        Case("gc", {"CEPH__CONF_FILE": __file__}, ("cannot be read as a ceph.conf", "ceph.conf_file")),
        Case("producer", {"CEPH__BLOCKS_POOL": "nowhere"}, ("has no pool nowhere", "docs/CEPH.md", "ceph.blocks_pool")),
        Case("init", {"CEPH__LANDING_POOL": "nowhere"}, ("has no pool nowhere", "docs/CEPH.md", "ceph.landing_pool")),
        Case("api", {"CEPH__BLOCKS_POOL": "nos-ec-landing"}, ("not erasure-coded", "ceph.blocks_pool")),
        Case("put", {"CEPH__LANDING_POOL": "nos-ec-blocks"}, ("replicated pool of size 3", "ceph.landing_pool")),
        Case("consumer", {"GEOMETRY__K": "4", "GEOMETRY__M": "2"}, ("k=8", "k=4", "correct the configuration")),
        Case("init", {"GEOMETRY__STRIPES_PER_BLOCK": "16"}, ("stripes_per_block=32", "correct the configuration")),
        Case("gc", {"KAFKA__TOPIC": "never-made"}, ("topic never-made does not exist", "kafka.topic")),
        Case("consumer", {"LOG__PARTITIONS": "5"}, ("set log.partitions to 3",)),
        Case("init", {"LOG__PARTITIONS": "5"}, ("set log.partitions to 3",)),
        Case(
            "producer",
            {"KAFKA__OPTIONS": '{"no.such": "1"}'},
            ("no.such", "correct the Kafka options", "kafka.options"),
        ),
        Case("consumer", {"LOG__SESSION_MS": "100"}, ("session_ms", "at least 1000 ms")),
    )


def test_unsuitable_pools(store: Store, pools: dict[str, str]) -> None:
    found = {
        "4+2": ("consumer", "is 4+2, but the configuration says 8+3", "ceph.blocks_pool"),
        "chunk": ("gc", "stripe_unit", "make a pool", "ceph.blocks_pool"),
        "overwrites": ("producer", "allow_ec_overwrites", "make another pool"),
    }
    assert_reported(
        store,
        *(
            Case(command, {"CEPH__BLOCKS_POOL": pools[kind]}, (pools[kind], *words))
            for kind, (command, *words) in found.items()
        ),
    )


def test_a_key_that_may_only_read(store: Store) -> None:
    """It would start, and fail with every write."""
    options = store.ceph.options("reader")
    changes = {"CEPH__USER": options.user, "CEPH__KEYRING_FILE": str(options.keyring_file)}
    words = ("caps that docs/CEPH.md lists", "ceph.user")
    assert_reported(store, Case("consumer", changes, words), Case("gc", changes, words))


def test_wrong_databases(store: Store) -> None:
    assert_reported(
        store,
        *(
            Case(
                command,
                {"STORE__METADATA_URL": store.database(f"{store.name}_{database}")},
                (*words, "store.metadata_url"),
            )
            for command, database, *words in (
                ("producer", "nowhere", "Unknown database", "CREATE DATABASE", "nos-ec init"),
                ("init", "nowhere", "Unknown database", "CREATE DATABASE"),
                ("consumer", "bare", "no tables yet", "nos-ec init"),
                ("status", "other", "another store", "ceph.namespace"),
            )
        ),
    )


def test_the_data_of_another_store(store: Store) -> None:
    """Every landing copy and block would look lost."""
    changes = {"CEPH__NAMESPACE": f"{store.name}_other"}
    words = ("another store", "ceph.namespace", "store.metadata_url")
    assert_reported(store, *(Case(command, changes, words) for command in ("consumer", "gc", "init")))


def test_a_new_database_takes_no_store(store: Store) -> None:
    """It does not even take one that holds no object: its processes would be shut out, or work on the same pools."""
    theirs = {"CEPH__NAMESPACE": f"{store.name}_other"}
    bare = theirs | {"STORE__METADATA_URL": store.database(f"{store.name}_bare")}
    assert_reported(store, Case("init", bare, ("new and empty", "ceph.namespace", "store.metadata_url")))
    done = store.run("status", theirs | {"STORE__METADATA_URL": store.database(f"{store.name}_other")})
    assert done.code == 0, done.stderr
    assert "no tables yet" in store.run("consumer", bare).message


def test_known_objects_get_no_second_place(store: Store) -> None:
    """`init` with a mistyped namespace does not create an empty store that hides all objects."""
    changes = {"CEPH__NAMESPACE": f"{store.name}_mistyped"}
    assert_reported(store, *(Case(command, changes, ("ceph.namespace",)) for command in ("producer", "init")))


def test_a_wrong_password_is_not_shown(store: Store) -> None:
    url = store.settings["STORE__METADATA_URL"].replace("root@", "root:hunter2@")
    done = store.run("consumer", {"STORE__METADATA_URL": url})
    assert tells(done, Case("consumer", {}, ("check user and password", "store.metadata_url"))), done.stderr
    assert "hunter2" not in done.stderr


def test_a_user_that_may_only_read_the_metadata(store: Store) -> None:
    user = store.name[:16]
    sql(store.url, f"CREATE USER '{user}'@'%'", f"GRANT SELECT ON `{store.name}`.* TO '{user}'@'%'")
    url = store.database(store.name).replace("root@", f"{user}@")
    assert_reported(store, Case("consumer", {"STORE__METADATA_URL": url}, ("command denied", "deploy/sql/grants.sh")))
    sql(store.url, f"DROP USER '{user}'@'%'")


def test_the_schema_of_a_newer_release(store: Store) -> None:
    url = store.database(f"{store.name}_other")
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        right = connection.scalar(text("SELECT version_num FROM alembic_version"))
    sql(url, "UPDATE alembic_version SET version_num = '9999'")
    changes = {"STORE__METADATA_URL": url, "CEPH__NAMESPACE": f"{store.name}_other"}
    words = ("9999", "newer", "store.metadata_url")
    try:
        assert_reported(store, Case("consumer", changes, words), Case("init", changes, words))
    finally:
        sql(url, f"UPDATE alembic_version SET version_num = '{right}'")


def test_a_missing_binding(store: Store) -> None:
    without = (
        "import sys, nos_ec.adapters.rados.client.binding as b; b._FOLDERS = (); sys.modules['rados'] = None;"
        " from nos_ec.cli import main; main()"
    )
    done = store.run_program([sys.executable, "-c", without], "consumer", {})
    assert tells(done, Case("consumer", {}, ("python3-rados",))), done.stderr


AWAY = {
    "ceph": (
        {"CEPH__CONF_FILE": "dead.conf", "CEPH__OP_TIMEOUT_MS": str(TIMEOUT_MS)},
        ("no monitor of", "mon_host", "ceph.conf_file"),
    ),
    "kafka": (
        {"KAFKA__SERVERS": "127.0.0.1:1", "KAFKA__OPTIONS": f'{{"socket.timeout.ms": {TIMEOUT_MS}}}'},
        ("check the brokers 127.0.0.1:1", "refused", "kafka.servers"),
    ),
    "mysql": (
        {"STORE__METADATA_URL": "mysql+pymysql://root@127.0.0.1:1/nos_ec"},
        ("127.0.0.1:1", "check that the server runs", "store.metadata_url"),
    ),
}


def test_servers_that_are_away_at_the_start(store: Store) -> None:
    (store.folder / "dead.conf").write_text("[global]\nmon_host = [v2:127.0.0.1:1]\n")
    pairs = [
        ("consumer", "ceph"),
        ("consumer", "kafka"),
        ("consumer", "mysql"),
        ("producer", "kafka"),
        ("gc", "ceph"),
        ("api", "mysql"),
        ("init", "kafka"),
    ]
    assert_reported(store, *(Case(command, *AWAY[server], TRANSIENT) for command, server in pairs))


def test_objects_need_no_brokers(store: Store) -> None:
    """`status` does not use the message log; PUT and GET work without it."""
    changes = {"KAFKA__SERVERS": "127.0.0.1:1"}
    assert_reported(store, Case("put", changes, code=0), Case("status", changes, code=0))


def test_the_right_configuration_runs(store: Store) -> None:
    """All daemons, until each reports that it is ready; then they stop on request."""
    ports = {command: free_port() for command in ("producer", "consumer", "gc", "api")}
    with ExitStack() as stack:
        daemons = {}
        for command in ports:
            daemons[command] = process = subprocess.Popen(
                [sys.executable, "-m", "nos_ec", *COMMANDS[command]],
                env=store.environment({"API__PORT" if command == "api" else "MONITORING__PORT": str(ports[command])}),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
        for command, process in daemons.items():
            await_ready(process, ports[command])
        for process in daemons.values():
            process.send_signal(signal.SIGTERM)
        said = {command: process.communicate(timeout=QUICK_S)[1] for command, process in daemons.items()}
        assert {process.returncode for process in daemons.values()} == {0}, said


def await_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline_s = time.monotonic() + QUICK_S
    while not is_ready(port):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline_s, "it runs, and is not ready"
        time.sleep(0.1)


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
