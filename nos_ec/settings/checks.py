"""Checks that involve several settings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from nos_ec.core.errors import ConfigError, InvalidInput
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import ObjectKey
from nos_ec.settings.sections import REQUEST_TIMEOUT, Cell, ConsoleSettings, LogSettings, Settings

DEVICES_MAX = 64
SEGMENTS_MIN = 4
"""The fewest segments of a device: an open segment takes one, and the next segment is prepared ahead."""
REQUEST_MS_MIN, REQUEST_MS_MAX = 1_000, 180_000
"""The shortest and longest time limit of a request to Kafka."""
_BROKER = re.compile(r"(\w+://)?(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}")
"""A name or address with a port; IPv6 addresses are in brackets. librdkafka also accepts a protocol before it."""
UTF8_ADVICE = "rename the file or folder, or use another value"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the settings, in one line. `setting` is the dotted name of the setting or section to correct; None
    if the problem is not in a setting. A harmless problem does not keep a process from starting."""

    text: str
    setting: str | None = None
    is_harmless: bool = False


def refusal(text: str, problems: Sequence[Problem]) -> ConfigError:
    """Return a ConfigError with this text and the settings of these problems."""
    names = dict.fromkeys(problem.setting for problem in problems if problem.setting is not None)
    return ConfigError(text, settings=tuple(names))


def is_utf8(text: str | Path) -> bool:
    """Return whether the text was valid UTF-8 at its source. Invalid bytes of a file name or an environment variable
    arrive as surrogates, which a database URL, a Ceph client and a configuration file cannot contain."""
    try:
        str(text).encode()
    except UnicodeEncodeError:
        return False
    return True


def require_root(root: Path) -> None:
    """Raise ConfigError for a folder that cannot be store.root, regardless of the current folder of the process."""
    for problem in _root(root):
        raise refusal(problem.text, [problem])


def cross_check(settings: Settings) -> Iterator[Problem]:
    """Yields every contradiction between settings."""
    try:
        geometry = settings.geometry.value()
    except ConfigError as error:
        yield Problem(str(error), "geometry")
        return
    yield from _root(settings.store.root)
    if settings.store.metadata_url is not None and settings.store.metadata_url_file is not None:
        yield _wrong("store.metadata_url_file", "store.metadata_url is also set; remove one of them")
    yield from _backends(settings)
    yield from _metadata_url(settings)
    yield from _landing(settings)
    reserve_bytes = settings.gc.reserve_bytes
    if 0 < reserve_bytes < geometry.block_size:
        yield _wrong(
            "gc.reserve_bytes",
            f"{reserve_bytes} is less than a block, so GC could not move one; use at least {geometry.block_size},"
            " better a few blocks",
        )
    if 0 < settings.gc.copy_bytes_max < geometry.block_size:
        yield _wrong(
            "gc.copy_bytes_max",
            f"{settings.gc.copy_bytes_max} is less than a block, so GC could not rewrite one; use at least"
            f" {geometry.block_size}, or 0 for no limit",
        )
    for site in settings.s3.website_domain_names:
        for domain in settings.s3.domain_names:
            if domain == site or domain.endswith("." + site):
                yield _wrong(
                    "s3.website_domains",
                    f"{site} is, or contains, {domain} of s3.domains, whose hosts speak S3; use another one for"
                    " websites",
                )
    yield from _spread(settings.log)
    yield from _prometheus(settings.console)
    consumer = settings.consumer
    if consumer.merge_list_bytes_max < geometry.group_size_max:
        yield _wrong(
            "consumer.merge_list_bytes_max",
            f"{consumer.merge_list_bytes_max} is less than a stripe group; use at least {geometry.group_size_max}",
        )
    if settings.producer.republish_ms <= consumer.linger_ms:
        yield _wrong(
            "producer.republish_ms",
            f"{settings.producer.republish_ms} is not more than consumer.linger_ms, so objects that are only waiting"
            f" are published repeatedly; use more than {consumer.linger_ms}",
        )


COMMON = frozenset({"store.directory", "logging.level", "logging.format"})
"""Settings that a cell cannot have for itself: they are of the whole store, or of the process that serves all cells."""


def check_cells(directory: str | None, cells: Mapping[str, Cell]) -> Iterator[Problem]:
    """Yields what is wrong between the cells of a store: the cell of the directory is not one of them, or two cells
    would keep their data in one place. Without cells, there can be no directory."""
    if not cells:
        if directory is not None:
            yield _wrong(
                "store.directory", "is set, but there are no cells; add their tables [cells.NAME], or remove it"
            )
        return
    if directory not in cells:
        why = "is not set" if directory is None else f"{directory!r} is not one of the cells"
        yield _wrong("store.directory", f"{why}; name the cell whose database holds the directory: {', '.join(cells)}")
    for setting, place in _PLACES.items():
        holders: dict[object, str] = {}
        for name, cell in cells.items():
            if (found := place(cell.settings)) is None:
                continue
            if (other := holders.setdefault(found, name)) != name:
                why = (
                    f"the cells {other} and {name} have the same {setting}; set it in [cells.{other}] or [cells.{name}]"
                )
                yield Problem(why, setting)
    yield from _nested_folders(cells)


def _nested_folders(cells: Mapping[str, Cell]) -> Iterator[Problem]:
    """Yields a problem for each cell whose folder is inside that of another one, as part of that cell's data."""
    folders = {name: folder for name, cell in cells.items() if (folder := _folder(cell.settings)) is not None}
    for inner, folder in folders.items():
        for outer, parent in folders.items():
            if Path(parent) in Path(folder).parents:
                why = f"the folder of cell {inner}, {folder}, is inside that of cell {outer}, {parent}; use another one"
                yield Problem(f"cells.{inner}.store.root: {why}", "store.root")


def _database(settings: Settings) -> object:
    store = settings.store
    return (store.metadata_url, store.metadata_url_file) if store.has_own_url else None


def _folder(settings: Settings) -> str | None:
    store = settings.store
    keeps_data = store.backend == "local" or not store.has_own_url or settings.log.backend == "local"
    return os.path.normpath(store.root.absolute()) if keeps_data else None


def _namespace(settings: Settings) -> object:
    ceph = settings.ceph
    pools = (ceph.conf_file, ceph.blocks_pool, ceph.landing_pool, ceph.namespace)
    return pools if settings.store.backend == "ceph" else None


def _topic(settings: Settings) -> object:
    return (settings.kafka.servers, settings.kafka.topic) if settings.log.backend == "kafka" else None


_PLACES: Mapping[str, Callable[[Settings], object]] = {
    "store.metadata_url": _database,
    "store.root": _folder,
    "ceph.namespace": _namespace,
    "kafka.topic": _topic,
}
"""The places where a cell keeps its data, by a setting that keeps those of two cells apart; None where the cell keeps
none."""


def _wrong(setting: str, why: str) -> Problem:
    return Problem(f"{setting}: {why}", setting)


def _landing(settings: Settings) -> Iterator[Problem]:
    landing = settings.landing
    if settings.store.backend != "local":
        if landing.devices:
            yield _wrong("landing.devices", 'only store.backend = "local" has devices; remove it')
        if landing.copies > 1:
            yield _wrong("landing.copies", "on Ceph the landing pool determines the number of copies; remove it")
        return
    entries = [entry.strip() for entry in landing.devices.split(",")] if landing.devices else []
    if "" in entries:
        yield _wrong("landing.devices", "there is no path before or after one of the commas; remove the comma")
    if bad := [entry for entry in entries if "\0" in entry or not is_utf8(entry)]:
        yield _wrong("landing.devices", f"{bad[0]!r} is not a valid path; {UTF8_ADVICE}")
        return
    paths = [os.path.normpath(path) for path in landing.paths(settings.store.root)]
    if twice := [path for index, path in enumerate(paths) if path in paths[:index]]:
        yield _wrong("landing.devices", f"{twice[0]} is named twice; name each device once")
    if len(paths) > DEVICES_MAX:
        yield _wrong("landing.devices", f"{len(paths)} devices are named; use at most {DEVICES_MAX}")
    if landing.copies > len(set(paths)):
        yield _wrong(
            "landing.copies",
            f"{landing.copies} copies need as many devices, and landing.devices names {len(set(paths))}; name more",
        )
    if landing.segment_bytes % PAGE:
        yield _wrong("landing.segment_bytes", f"{landing.segment_bytes} is not a multiple of {PAGE}; use one")
    if landing.device_bytes % PAGE:
        yield _wrong("landing.device_bytes", f"{landing.device_bytes} is not a multiple of {PAGE}; use one")
    least_bytes = SEGMENTS_MIN * landing.segment_bytes + (1 << 20)
    if landing.device_bytes < least_bytes and any(not path.startswith("/dev/") for path in paths):
        yield _wrong(
            "landing.device_bytes",
            f"{landing.device_bytes} is too small for {SEGMENTS_MIN} segments of landing.segment_bytes; use at least"
            f" {least_bytes}",
        )


def _root(root: Path) -> Iterator[Problem]:
    with suppress(FileNotFoundError):  # the current folder was deleted, which matters only if the store is inside it
        root = root.absolute()
    if not is_utf8(root):
        yield _wrong("store.root", f"{str(root)!r} is not valid UTF-8; {UTF8_ADVICE}")


def _metadata_url(settings: Settings) -> Iterator[Problem]:
    """Yields a problem for a database that is not supported. The text quotes only the scheme of the URL, because any
    other part may contain a password."""
    if settings.store.metadata_url is None:
        return
    scheme, separator, _ = settings.store.url().partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        yield _wrong("store.metadata_url", f"this is not a database URL; use {_SUPPORTED}")
    elif scheme.partition("+")[0] not in _DATABASES:
        yield _wrong("store.metadata_url", f"{scheme}:// is not supported; use {_SUPPORTED}")
    elif scheme.partition("+")[2] not in _DATABASES[scheme.partition("+")[0]]:
        yield _wrong("store.metadata_url", f"the driver of {scheme}:// is not supported; use {_SUPPORTED}")


_SCHEME = re.compile(r"[A-Za-z0-9_.+-]{1,40}")
_DATABASES = {"sqlite": ("", "pysqlite"), "mysql": ("", "pymysql"), "mariadb": ("", "pymysql")}
"""The drivers that a URL may name, by database; '' means the default driver."""
_SUPPORTED = (
    "sqlite:////path/metadata.db, mysql+pymysql://user:password@host:3306/database, or mariadb+pymysql://... likewise"
)


def _spread(log: LogSettings) -> Iterator[Problem]:
    for bucket, spread in (("", log.spread), *sorted(log.spread_buckets.items())):
        setting, where = ("log.spread_buckets", f"bucket {bucket}: ") if bucket else ("log.spread", "")
        if isinstance(spread, int) and spread > log.partitions:
            yield _wrong(setting, f'{where}{spread} is more than log.partitions; use 1 to {log.partitions}, or "auto"')
    for bucket in sorted(log.spread_buckets):
        try:
            ObjectKey(bucket, "any")
        except InvalidInput as error:
            yield _wrong("log.spread_buckets", f"this is not a valid bucket name: {error}")


def _prometheus(console: ConsoleSettings) -> Iterator[Problem]:
    """Yields a problem for a URL that is not one, or that has a password, which would be shown."""
    if console.prometheus_url is None:
        return
    advice = "use http://HOST:PORT or https://HOST:PORT, with a path if Prometheus has one"
    try:
        url = urlsplit(console.prometheus_url)
        is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_url = False
    if not is_url or not _PLAIN_URL.fullmatch(console.prometheus_url):
        yield _wrong("console.prometheus_url", f"this is not the URL of a Prometheus; {advice}")


_PLAIN_URL = re.compile(r"[\w:/.\[\]~%+-]+", re.ASCII)
"""A URL without a user, a password, a query and a fragment."""


def _is_request_timeout(value: str | int | bool) -> bool:
    """Return whether this can be the time limit of a request. A batch of a producer waits for at most 18 requests, and
    producers keep their slots for LEASE_MS_MAX meanwhile."""
    try:
        return not isinstance(value, bool) and REQUEST_MS_MIN <= int(value) <= REQUEST_MS_MAX
    except ValueError:
        return False


def _backends(settings: Settings) -> Iterator[Problem]:
    """Yields a problem for each setting that a backend lacks or cannot work with, and for each misplaced secret."""
    kafka = settings.kafka
    if settings.store.backend == "ceph" and settings.ceph.conf_file is None:
        yield _wrong(
            "ceph.conf_file", 'required by store.backend = "ceph"; set it to the path of the cluster\'s ceph.conf'
        )
    if settings.log.backend == "kafka" and not kafka.servers:
        yield _wrong("kafka.servers", 'required by log.backend = "kafka"; set it to host:port of one or more brokers')
    brokers = [one.strip() for one in kafka.servers.split(",")] if kafka.servers else []
    if bad := [one for one in brokers if not _BROKER.fullmatch(one)]:
        yield _wrong("kafka.servers", f"{bad[0]!r} is not host:port; give each broker with its port")
    if kafka.in_sync_min > kafka.replication:
        yield _wrong(
            "kafka.in_sync_min", f"{kafka.in_sync_min} is more than kafka.replication; use at most {kafka.replication}"
        )
    if not _is_request_timeout(kafka.options.get(REQUEST_TIMEOUT, REQUEST_MS_MIN)):
        yield _wrong("kafka.options", f"{REQUEST_TIMEOUT} must be a whole number, {REQUEST_MS_MIN} to {REQUEST_MS_MAX}")
    for key in sorted(kafka.options):
        if "password" in key or "secret" in key:
            yield _wrong("kafka.options", f"{key} is a secret and would be shown; move it to kafka.secrets")
    for key in sorted(kafka.options.keys() & kafka.secrets.keys()):
        yield _wrong("kafka.secrets", f"{key} is also in kafka.options; remove it from one of them")
