"""Which blocks to collect: candidate policies, the accounts of a block, costs and prices.

May import `formats`, `packing` and the modules of core itself. Begin with gc_policy.py; docs/GC.md has the rules.
"""
