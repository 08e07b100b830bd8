"""The GC service: reclaims blocks that are mostly holes."""
