"""The placement group and the OSDs of a block, and the state of both.

May import `client`, ports and core. Begin with pool_placement.py.
"""
