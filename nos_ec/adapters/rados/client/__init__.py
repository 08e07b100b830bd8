"""A thin layer over librados: the binding, a cluster, a pool, and the translation of errors into those of the ports.

Knows nothing of blocks or objects. May import ports and core. Begin with cluster.py, pool.py and steps.py.
"""
