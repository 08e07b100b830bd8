"""The end of objects: lifecycle rules of buckets, noncurrent versions, and known or measured lifetimes.

May import ports, core and the shared modules of the engine. Begin with lifecycle_walk.py, which applies the rules of
one bucket after the other.
"""
