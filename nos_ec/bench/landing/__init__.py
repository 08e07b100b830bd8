"""Benchmarks of PUTs: each way of landing small objects, and the landing log at its limits.

May import the modules of bench itself. Start reading with landing_only.py.
"""
