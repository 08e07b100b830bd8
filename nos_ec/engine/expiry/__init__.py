"""When objects end: lifecycle rules of buckets, noncurrent versions, and what is known or measured of lifetimes.

May import ports, core and the modules of the engine that many use. Begin with lifecycle_walk.py, which applies the
rules of one bucket after the other.
"""
