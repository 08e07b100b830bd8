"""How the producer spreads objects over slots and partitions, and when it publishes one again.

May import `formats` and the modules of core itself. Begin with slots.py.
"""
