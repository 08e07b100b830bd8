"""The read-only admin API over HTTP."""
