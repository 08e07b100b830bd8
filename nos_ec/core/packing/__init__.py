"""How objects are packed into stripe groups: plans, the two policies, size classes and the bounds on utilisation.

May import `formats` and the modules of core itself. Begin with packer.py; docs/PACKING.md explains the rules.
"""
