"""librados in the terms of this program: the binding, a cluster, a pool, and errors as the ports have them.

Knows nothing of blocks or objects. May import core. Begin with cluster.py and pool.py.
"""
