"""Defines notifications of buckets: which changes of their objects are reported to which topics, and how
(docs/adr/0059)."""
