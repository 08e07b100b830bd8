"""Sends the log messages of the engine to the standard `logging` of a program that uses it as a library."""

from __future__ import annotations

import structlog


def log_through_logging() -> None:
    """Send log messages to the standard `logging`, to loggers named after the modules of this package.

    Does nothing when the program has configured structlog. Without this, structlog would print to standard output,
    which belongs to the program.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
