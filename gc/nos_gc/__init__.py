"""The GC service: reclaims the space of deleted objects."""
