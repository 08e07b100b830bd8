"""`bench life`: CPU of an object from its PUT until it is packed, in each way of landing it.

May import `servers` and the modules of bench itself. Begin with life_bench.py.
"""
