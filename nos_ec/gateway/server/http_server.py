"""Assembles the parts of a gateway, and serves until the process is stopped."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import uvicorn

from nos_ec.composition.wiring import System
from nos_ec.engine.wide.buckets import WideBuckets
from nos_ec.engine.wide.listings import MergedLists, MergedUploads
from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.auth.key_service import find_key_service
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.gateway.message.encryption import Encryption
from nos_ec.gateway.operations.attribute_changes import AttributeChanges
from nos_ec.gateway.operations.bucket_documents import BucketDocuments
from nos_ec.gateway.operations.bucket_encryption import bucket_encryption
from nos_ec.gateway.operations.bucket_logging import BucketLogging
from nos_ec.gateway.operations.bucket_operations import BucketOperations, Homes
from nos_ec.gateway.operations.cors import Cors
from nos_ec.gateway.operations.listings import Listings
from nos_ec.gateway.operations.multipart_operations import MultipartOperations
from nos_ec.gateway.operations.notifications import bucket_notifications
from nos_ec.gateway.operations.object_locks import LocksOfPuts, ObjectLockOperations
from nos_ec.gateway.operations.object_operations import ObjectOperations
from nos_ec.gateway.operations.post_forms import PostForms
from nos_ec.gateway.operations.renames import RenameOperations
from nos_ec.gateway.operations.security_tokens import SecurityTokens
from nos_ec.gateway.operations.websites import Websites
from nos_ec.gateway.server.accepting import SharingServer
from nos_ec.gateway.server.app import App, AppOptions
from nos_ec.gateway.server.certificate import Certificate
from nos_ec.gateway.server.connection_counts import ConnectionCounts
from nos_ec.gateway.server.http_protocol import IDLE_WAIT_S, GatewayProtocol
from nos_ec.gateway.server.log_batches import AccessLogs
from nos_ec.gateway.server.probes import Probes
from nos_ec.gateway.server.rate_limits import RateLimits
from nos_ec.gateway.server.request_counters import RequestCounters
from nos_ec.gateway.server.service import Answers, Service
from nos_ec.gateway.server.trusted_proxies import TrustedProxies
from nos_ec.gateway.server.workers import Workers
from nos_ec.monitoring.health import Health
from nos_ec.monitoring.web_server import WebServer, open_listener
from nos_ec.ports.metadata import BucketState, Metadata
from nos_ec.settings import S3Settings

STOP_WAIT_S = 30
"""How long requests in flight may take after the process was asked to stop."""
ACCESS_CACHE_MS = 2_000
"""How long a process remembers access keys, owners, grants and documents of buckets, so that most requests need no
query for them. A change in another process is seen this late."""
BODY_WAIT_S = 60.0
"""How long a client may pause while it sends a body, as long as for unacknowledged data in the other direction."""
BEAT_MS = 1000
"""The interval at which the event loop reports that it runs; whole seconds, because uvicorn accepts only those."""


@dataclass(frozen=True, slots=True)
class OtherCells:
    """The cells of a store, as the service of one of them needs them. `service_of` returns the service for the requests
    about a bucket, and `objects_of` the operations on an object of it, by its name. Both raise S3Error (NoSuchBucket),
    Transient."""

    service_of: Callable[[str], Service]
    objects_of: Callable[[str, str], ObjectOperations]


@dataclass(frozen=True, slots=True)
class Wide:
    """What the services of wide buckets with the same cells have in common (docs/adr/0068)."""

    access: Access
    buckets: WideBuckets
    lists: MergedLists
    uploads: MergedUploads


def make_service(
    system: System,
    master_keys: MasterKeys,
    settings: S3Settings,
    keys: Metadata | None = None,
    homes: Homes | None = None,
    others: OtherCells | None = None,
    wide: Wide | None = None,
    plain: Service | None = None,
) -> Service:
    """Return the S3 service of an open store: a gateway without its HTTP server.

    The service of one cell of several takes access keys and the keys that encrypt objects from `keys`, the metadata of
    the directory's cell. For `homes` see BucketOperations. With `wide`, the service is for wide buckets, some of whose
    objects are in this cell; `plain` is then the cell's service for other buckets, which shares the rates of accounts
    and what it knows about access keys.
    """
    store, metadata, clock = system.client.store(), system.metadata, system.clock
    uploads = system.client.uploads(store)
    buckets = metadata if wide is None else wide.buckets
    access = make_access(system, master_keys, keys) if wide is None else wide.access
    changes, locks = AttributeChanges(store, clock, Random().random), system.client.locks(store)
    locks_of_puts = LocksOfPuts(locks, clock)
    ring = KeyRing(keys or metadata, master_keys, clock, find_key_service(settings, clock))
    encryption = Encryption(store, ring, system.randomness, by_default=settings.encrypt)
    logging_of = None if others is None else lambda bucket: others.service_of(bucket).logging
    objects_of = None if others is None else others.objects_of
    objects = ObjectOperations(
        store, uploads, access, changes, locks_of_puts, encryption, objects_of, is_wide=wide is not None
    )
    lists = None if wide is None else wide.uploads
    multipart = MultipartOperations(store, uploads, objects, access, locks_of_puts, encryption, lists)
    service = Service(
        access,
        BucketOperations(buckets, uploads if wide is None else wide.uploads, access, clock, settings.region, homes),
        Listings(store if wide is None else wide.lists, encryption),
        objects,
        RenameOperations(store, objects, multipart, access, encryption),
        multipart,
        ObjectLockOperations(objects.find_version, locks, changes, clock),
        BucketDocuments(buckets, access, clock),
        bucket_encryption(encryption),
        bucket_notifications(settings.topics),
        Websites(access, objects, settings.website_domain_names),
        BucketLogging(access, objects, clock, logging_of),
        Cors(access),
        PostForms(access, objects, clock),
        SecurityTokens(access, clock),
        clock,
        settings.domain_names,
        settings.region,
        _rate_limits(system) if plain is None else plain.limits,
    )
    if plain is not None:
        service.share_keys(plain)
    return service


def make_access(
    system: System, master_keys: MasterKeys, keys: Metadata | None, buckets: BucketState | None = None
) -> Access:
    """Return what looks up senders and buckets: `buckets` instead of those of the cell, if they are wide."""
    return Access(system.metadata, master_keys, system.clock, ACCESS_CACHE_MS, system.randomness, keys, buckets)


def _rate_limits(system: System) -> RateLimits | None:
    if not system.settings.store.count_usage:
        return None
    limits = RateLimits(system.metadata, system.clock, system.randomness(8).hex())
    system.stack.callback(limits.close)
    return limits


def open_gateway_listener(settings: S3Settings) -> socket.socket:
    """Return a new listening socket, which several processes may share. Raises ConfigError if the address cannot be
    used."""
    return open_listener("s3", settings.host, settings.port)


class GatewayServer(WebServer):
    """The server of a gateway process, with the threads that serve its requests."""

    def __init__(
        self,
        service: Answers,
        settings: S3Settings,
        new_id: Callable[[], str],
        listener: socket.socket,
        health: Health,
        certificate: Certificate | None = None,
        share: tuple[ConnectionCounts, int] | None = None,
    ) -> None:
        """`new_id` returns the id of a new request. `listener` comes from `open_gateway_listener`. `health` then also
        watches the event loop. `certificate` is None for plain HTTP. `share` is None for a single process, else the
        counts of the processes that share the listener, and the number of this one."""
        beat = health.heart("serving")

        async def notify() -> None:
            beat(BEAT_MS)

        proxies = TrustedProxies(settings.trusted_networks)
        options = AppOptions(BODY_WAIT_S, settings.requests_max, settings.access_log, proxies)
        self.counters = RequestCounters()
        self.logs = AccessLogs(service.store_log, settings.region, health.clock, new_id)
        self.certificate = certificate
        self._workers = Workers(settings.threads, "s3")
        self._upload_workers = Workers(settings.threads, "s3-upload")
        self._probes = Probes(health, [*settings.domain_names, *settings.website_domain_names], proxies)
        super().__init__(
            App(service, self._workers, self._upload_workers, new_id, options, self.counters, self._probes, self.logs),
            "s3",
            listener,
            stop_wait_s=STOP_WAIT_S,
            idle_wait_s=IDLE_WAIT_S,
            http=GatewayProtocol,
            loop="uvloop",
            proxy_headers=False,  # App reads them, by its TrustedProxies
            limit_concurrency=None,  # App limits requests, and GatewayProtocol connections
            callback_notify=notify,
            timeout_notify=BEAT_MS // 1000,
            new_server=uvicorn.Server if share is None else lambda config: SharingServer(config, *share),
            ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
        )

    def __exit__(self, *_: object) -> None:
        """Stop the server and its threads."""
        super().__exit__()
        for pool in (self._workers, self._upload_workers, self._probes):
            pool.close()

    def finish(self) -> None:
        """Stop accepting requests, let requests in flight finish, and store what the access logs of buckets still
        lack, for a while. Safe to repeat."""
        super().finish()
        self.logs.close()
