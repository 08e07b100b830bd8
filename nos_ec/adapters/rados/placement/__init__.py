"""On which placement group and OSDs a block lies, and in which state they are.

May import `client`, ports and core. Begin with pool_placement.py.
"""
