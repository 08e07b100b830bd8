"""Blocks as files: k + m folders, a shard file in each, Reed-Solomon over them, and the rebuild of lost shards.

May import `files`, ports and core. Begin with block_store.py, then shard_file.py (the format of a shard).
"""
