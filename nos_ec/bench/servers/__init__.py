"""Servers that a benchmark starts or measures: processes and their CPU, and the daemons of a Ceph cluster.

May import everything below bench, but no other module of bench. Start reading with processes.py.
"""
