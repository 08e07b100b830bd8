"""Reads everything that is packed, block after block, and mends what is damaged from other shards or landing copies."""
