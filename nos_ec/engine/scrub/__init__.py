"""Reads everything that is packed, block by block, and mends damage from other shards or from landing copies."""
