"""Connections and transactions: engines for each database, retries, failures in the terms of the ports.

Knows no table. May import ports and core. Begin with transactions.py.
"""
