"""What is known of one request, for the counters and the access log."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "Unknown"
"""The operation of a request that was refused before it was clear what it asks for."""
CLIENT_CLOSED = "ClientClosed"
"""The code of a request whose client went away before it had all of the answer."""


@dataclass(slots=True)
class Record:
    """Filled while the request is served. operation: by the name of the S3 API reference. code: of the error, empty if
    there is none. status: what the request counts as: 500 if it failed when its answer had begun. received, sent: bytes
    of the bodies. remote: the address of the client, as far as trusted proxies say it."""

    request_id: str
    method: str
    remote: str = ""
    agent: str = ""
    operation: str = UNKNOWN
    bucket: str = ""
    key: str = ""
    account: str | None = None
    status: int = 0
    code: str = ""
    received: int = 0
    sent: int = 0
    first_byte_s: float = 0.0
    whole_s: float = 0.0
