"""Rows of blocks, of segments of the landing log, and of the leases under which these are written.

May import `driver` and `tables`, ports and core. Begin with block_rows.py.
"""
