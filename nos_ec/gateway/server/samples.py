"""Makes samples of metrics from the counters of a gateway."""

from __future__ import annotations

from collections.abc import Iterator

from nos_ec.gateway.server.log_batches import AccessLogs
from nos_ec.gateway.server.request_counters import RequestCounters
from nos_ec.monitoring.declarations import s3_metrics as of_s3
from nos_ec.monitoring.exposition import Sample


def gateway_samples(counters: RequestCounters) -> Iterator[Sample]:
    """Yield the samples of the requests of one process."""
    for operation, figures in list(counters.operations.items()):
        yield Sample(of_s3.S3_SECONDS, figures.whole_s, (operation,))
        yield Sample(of_s3.S3_FIRST_BYTE_SECONDS, figures.first_byte_s, (operation,))
        yield Sample(of_s3.S3_RECEIVED_BYTES, figures.received, (operation,))
        yield Sample(of_s3.S3_SENT_BYTES, figures.sent, (operation,))
    for labels, count in list(counters.errors.items()):
        yield Sample(of_s3.S3_ERRORS, count, labels)
    yield Sample(of_s3.S3_UNDER_WAY, counters.under_way)


def log_samples(logs: AccessLogs) -> Iterator[Sample]:
    """Yield the samples of the access logs of buckets, of one process."""
    yield Sample(of_s3.S3_LOG_LINES, logs.delivered, ("delivered",))
    yield Sample(of_s3.S3_LOG_LINES, logs.dropped, ("dropped",))


def process_samples(processes: int, restarts: int) -> Iterator[Sample]:
    """Yield the samples about the processes of a gateway."""
    yield Sample(of_s3.S3_PROCESSES, processes)
    yield Sample(of_s3.S3_RESTARTS, restarts)
