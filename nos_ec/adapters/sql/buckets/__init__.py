"""Rows of buckets, of their configurations, and of access keys.

May import `driver`, `tables`, `blocks` and `objects`, ports and core. Begin with bucket_rows.py.
"""
