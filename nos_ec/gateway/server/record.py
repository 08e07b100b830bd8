"""The facts about one request that the counters and the access log need."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "Unknown"
"""The operation of a request that was refused before its operation was known."""
CLIENT_CLOSED = "ClientClosed"
"""The code of a request whose client disconnected before it received the whole answer."""


@dataclass(slots=True)
class Record:
    """A record of one request, filled while the request is served.

    `operation` is its name in the S3 API reference. `code` is the code of the error, empty without one. `status` is 500
    if the request failed after its answer had begun. `received` and `sent` are bytes of the bodies. `remote` is the
    address of the client, which trusted proxies may report.
    """

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
