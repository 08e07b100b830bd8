"""Reads everything that is packed, block by block, and mends damage from other shards or from landing copies.

May import the rest of the engine except `dump` and `explain`. Begin with scrubber.py, then blocks.py and mending.py.
"""
