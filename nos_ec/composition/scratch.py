"""Creates a temporary store next to the configured one, on the same servers. Demo and bench use and then remove it.

the configured store has    the scratch store has
local blocks, log, SQLite   a folder
landing devices             a file for each, in that folder
Ceph                        a RADOS namespace in both pools
Kafka                       a topic
MySQL, MariaDB              a database
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import SecretStr

from nos_ec.adapters.sql.driver.databases import SCRATCH, create_database, drop_database, scratch_url
from nos_ec.composition.backends import remove_log, remove_objects
from nos_ec.composition.wiring import initialise
from nos_ec.settings import Settings, require_root


@contextmanager
def scratch_store(settings: Settings, root: Path, purpose: str, *, keep: bool = False) -> Iterator[Settings]:
    """Create a new, empty store like the store of `settings`, and yield its settings. At the end, remove all of it
    except the contents of `root`, unless `keep` is set.

    root: the folder of the embedded parts. purpose: a word in the names of all other parts. Raises ConfigError (also if
    the users of Ceph, Kafka and MySQL are not allowed to create these parts), Transient.
    """
    require_root(root)
    scratch = _settings(settings, root, f"{purpose}_{os.urandom(4).hex()}")
    with ExitStack() as stack:
        if scratch.store.has_own_url:
            create_database(scratch.store.url())
            stack.callback(drop_database, scratch.store.url())
        if scratch.store.backend != "local":
            stack.callback(remove_objects, scratch)
        if scratch.log.backend != "local":
            stack.callback(remove_log, scratch)
        initialise(scratch)
        yield scratch
        if keep:
            stack.pop_all()


def _settings(settings: Settings, root: Path, tag: str) -> Settings:
    devices = len(settings.landing.paths(root)) if settings.landing.devices else 0
    given = settings.store.url()
    url = None if given.startswith("sqlite") else SecretStr(scratch_url(given, tag))
    return settings.model_copy(
        update={
            "store": settings.store.model_copy(update={"root": root, "metadata_url": url, "metadata_url_file": None}),
            "landing": settings.landing.model_copy(
                update={"devices": ",".join(f"landing_log/device{number}" for number in range(devices))}
            ),
            "ceph": settings.ceph.model_copy(update={"namespace": f"{settings.ceph.namespace}{SCRATCH}{tag}"}),
            "kafka": settings.kafka.model_copy(update={"topic": f"{settings.kafka.topic}{SCRATCH}{tag}"}),
        }
    )
