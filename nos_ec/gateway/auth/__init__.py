"""Who sends a request and what they may do: access keys and their sealed secrets, ACLs, policies' results.

May import engine, ports, core and s3. Begin with access.py.
"""
