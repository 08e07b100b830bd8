"""Local files and folders: copies trees of files to and from a bucket, and writes files atomically.

May import `terminal` and everything below the CLI. Start reading with trees.py.
"""
