"""The admin API: read-only, over HTTP."""
