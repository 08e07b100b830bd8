"""Servers that a benchmark starts or measures: processes and their CPU, and the daemons of a Ceph cluster.

May import everything below bench, but nothing of it. Begin with processes.py.
"""
