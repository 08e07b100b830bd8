"""Files and folders on the user's side: copies trees of them to and from a bucket, and writes files atomically.

May import `terminal` and everything below the CLI. Begin with trees.py.
"""
