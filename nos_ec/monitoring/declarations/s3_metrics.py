"""The metrics of the S3 gateway. With several processes, they are sums over all of them."""

from __future__ import annotations

from nos_ec.monitoring.declarations.metric import S3, Declarations, Metric

_declared = Declarations()
_counter, _gauge, _histogram = _declared.counter, _declared.gauge, _declared.histogram

S3_SECONDS = _histogram(
    "s3_request_seconds",
    (S3,),
    "Seconds from the head of a request to the last byte of its answer, by operation of the S3 API. `Unknown` requests"
    " were refused before their operation was known. Its `_count` is the number of requests.",
    "Includes the time that a client takes to send its body and to read the answer, so check"
    " `nos_ec_s3_first_byte_seconds` first.",
    "operation",
)
S3_FIRST_BYTE_SECONDS = _histogram(
    "s3_first_byte_seconds",
    (S3,),
    "Seconds from the head of a request to the first byte of its answer, by operation.",
    "If it grows for `GetObject`, check the metadata store and the block store, and whether requests wait for each"
    " other (`nos_ec_s3_requests_under_way` near s3.processes * s3.threads). For a PUT, it includes the time of the"
    " body.",
    "operation",
)
S3_ERRORS = _counter(
    "s3_errors",
    (S3,),
    "Requests that did not succeed, by operation, error code of S3 and HTTP status. `ClientClosed` means that the"
    " client disconnected before the end of the answer.",
    "Status 4xx is an error of the client. Alert on 5xx: the log has the reason of `InternalError` and"
    " `ServiceUnavailable`; `SlowDown` means more than s3.requests_max requests, or too many connections.",
    "operation",
    "code",
    "status",
)
S3_RECEIVED_BYTES = _counter(
    "s3_received_bytes", (S3,), "Bytes of the bodies of requests, by operation.", "The inbound traffic.", "operation"
)
S3_SENT_BYTES = _counter(
    "s3_sent_bytes", (S3,), "Bytes of the bodies of answers, by operation.", "The outbound traffic.", "operation"
)
S3_UNDER_WAY = _gauge(
    "s3_requests_under_way",
    (S3,),
    "Requests under way.",
    "Each process serves s3.threads requests at the same time, plus as many with large bodies; the others wait. Above"
    " s3.requests_max, a process answers SlowDown.",
)
S3_LOG_LINES = _counter(
    "s3_log_lines",
    (S3,),
    "Lines of the access logs of buckets: delivered to their target bucket, or dropped.",
    "Lines are dropped if the target bucket refuses them, is away for hours or takes them too slowly, or if the process"
    " ends meanwhile. The log has the reason.",
    "result",
)
S3_PROCESSES = _gauge(
    "s3_processes",
    (S3,),
    "Processes that serve requests.",
    "Equals s3.processes. If it stays lower, a process cannot start: its log has the reason.",
)
S3_RESTARTS = _counter(
    "s3_process_restarts",
    (S3,),
    "Processes that ended or hung, and were replaced.",
    "Should be 0. The log has the exit code of each; -9 often means that the kernel was out of memory.",
)

S3_METRICS: list[Metric] = _declared.metrics
"""All metrics of this module, in the order of the reference."""
