"""Blocks as files: k + m folders with a shard file of each block, Reed-Solomon coding, and the rebuild of lost shards.

May import `files`, ports and core. Begin with block_store.py, then shard_file.py (the format of a shard).
"""
