"""A Galera cluster of three MariaDB servers on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pymysql  # type: ignore[import-untyped]

from tests.rig.dev_servers import DevServer, free_port
from tests.rig.waiting import until

NODES = 3
_SCRIPTS = Path(__file__).parents[1] / "bin"
_OPTIONS = (
    "--wsrep-on=ON --wsrep-provider=/usr/lib/galera/libgalera_smm.so --wsrep-sst-method=files --binlog-format=ROW"
    " --innodb-autoinc-lock-mode=2 --wsrep-node-address=127.0.0.1 --wsrep-node-incoming-address={address}"
    " --wsrep-cluster-address=gcomm://{members} --wsrep-provider-options="
    "gmcast.listen_addr=tcp://127.0.0.1:{group};ist.recv_addr=127.0.0.1:{transfer};gcache.size=16M"
)


class GaleraNode:
    """One node. It keeps its port and its data when it is stopped and started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.group_port, self._transfer_port = free_port(), free_port()
        self.server = self._server()

    @property
    def address(self) -> str:
        """What the node calls itself in the cluster."""
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "mariadb" / "data"

    @property
    def is_ready(self) -> bool:
        """Whether it is in the cluster and has all that the others have."""
        with suppress(pymysql.err.Error):
            return self.status("wsrep_ready") == "ON"
        return False

    def _server(self, options: str = "") -> DevServer:
        return DevServer(
            "mariadb",
            self.folder,
            NOS_EC_DEV_PORT=str(self.port),
            NOS_EC_DEV_DATABASE_OPTIONS=options,
            PATH=f"{_SCRIPTS}:{os.environ['PATH']}",
        )

    def join(self, members: list[GaleraNode]) -> None:
        """Make the server a node of this cluster, which it founds if there are no members; `start` starts it."""
        options = _OPTIONS.format(
            address=self.address,
            members=",".join(f"127.0.0.1:{member.group_port}" for member in members),
            group=self.group_port,
            transfer=self._transfer_port,
        )
        self.server = self._server(options)

    def start(self) -> None:
        """Start it, and wait until it is ready. Raises ServerMissing, ServerFailed."""
        self.server.start()
        until(lambda: self.is_ready)

    @property
    def view(self) -> str:
        """The number of the view of the cluster, which changes when a node leaves or joins."""
        return self.status("wsrep_cluster_conf_id")

    def sql(self, *statements: str) -> list[str]:
        """Run statements as root, whom read_only does not bind. Return the first column of the last one's rows."""
        with closing(self._connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return [str(row[0]) for row in cursor.fetchall()]

    def status(self, name: str) -> str:
        """A status variable."""
        with closing(self._connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SHOW GLOBAL STATUS LIKE '{name}'")
            return str(cursor.fetchone()[1])

    def _connect(self) -> pymysql.Connection:
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True)


@contextmanager
def galera_cluster(folder: Path) -> Iterator[list[GaleraNode]]:
    """Yield the nodes of a running cluster. Raises ServerMissing, ServerFailed."""
    nodes = [GaleraNode(folder / f"node-{number}") for number in range(1, NODES + 1)]
    first, *others = nodes
    first.join([])
    first.start()
    first.server.stop()
    for node in others:
        shutil.copytree(first.data, node.data)
    try:
        first.start()
        for node in others:
            node.join(nodes)
            node.start()
        first.join(nodes)  # when it starts again
        yield nodes
    finally:
        for node in nodes:
            with suppress(OSError, ValueError):
                node.server.wake()
        for node in reversed(nodes):
            node.server.stop()
