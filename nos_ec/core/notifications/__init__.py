"""Notifications of buckets: which changes of their objects are told to which topics, and how (docs/adr/0059)."""
