"""What each field alone cannot see."""

from __future__ import annotations

from collections.abc import Iterator

from nos_ec.core.errors import ConfigError
from nos_ec.settings.sections import Settings


def cross_check(settings: Settings) -> Iterator[str]:
    """A line for everything that does not go together."""
    try:
        geometry = settings.geometry.value()
    except ConfigError as error:
        yield str(error)
        return
    yield from _backends(settings)
    consumer = settings.consumer
    if consumer.merge_list_bytes_max < geometry.group_size_max:
        yield (
            f"consumer.merge_list_bytes_max: {consumer.merge_list_bytes_max} is less than a stripe group; use at least"
            f" {geometry.group_size_max}"
        )
    if settings.producer.republish_ms <= consumer.linger_ms:
        yield (
            f"producer.republish_ms: {settings.producer.republish_ms} is not more than consumer.linger_ms, so objects"
            f" that merely wait are published again and again; use more than {consumer.linger_ms}"
        )


def _backends(settings: Settings) -> Iterator[str]:
    """What a backend needs, and what is set that would do nothing."""
    kafka = settings.kafka
    if settings.store.backend == "ceph" and settings.ceph.conf_file is None:
        yield 'ceph.conf_file: store.backend is "ceph", which needs it; set it to the path of the cluster\'s ceph.conf'
    if settings.log.backend == "kafka" and not kafka.servers:
        yield 'kafka.servers: log.backend is "kafka", which needs it; set it to host:port of one or more brokers'
    if kafka.in_sync_min > kafka.replication:
        yield f"kafka.in_sync_min: {kafka.in_sync_min} is more than kafka.replication; use at most {kafka.replication}"
    if kafka.poll_interval_ms_max < settings.log.session_ms:
        yield (
            f"kafka.poll_interval_ms_max: {kafka.poll_interval_ms_max} is less than log.session_ms; use at least"
            f" {settings.log.session_ms}"
        )
    for key in sorted(kafka.options):
        if "password" in key or "secret" in key:
            yield f"kafka.options: {key} is a secret and would be shown; move it to kafka.secrets"
    for key in sorted(kafka.options.keys() & kafka.secrets.keys()):
        yield f"kafka.secrets: {key} is in kafka.options too; remove it from one of them"
