"""Benchmarks of PUTs: each way of landing small objects, and the landing log at its limits.

May import the modules of bench itself. Begin with landing_only.py.
"""
