"""The operations of clients on objects: PUT, GET, list, delete, multipart uploads, and the trash.

Small objects go to the landing store in batches, large ones directly to blocks. May import `landing` and `packing`,
ports and core; never `gc`, `upkeep` or the services. Begin with store.py, then put_queue.py (small objects), large.py
and reading.py.
"""
