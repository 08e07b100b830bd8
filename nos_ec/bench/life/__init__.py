"""`bench life` measures the CPU time of an object from its PUT until it is deleted, for each way of landing.

May import `servers` and the modules of bench itself. Start reading with life_bench.py.
"""
