"""Who sends a request and what the sender may do: access keys and their encrypted secrets, buckets, ACLs.

May import engine, ports, core and s3. Begin with access.py.
"""
