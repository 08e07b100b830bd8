"""Connections and transactions: engines for each database, retries, and driver errors translated to those of core.

Does not know any table. May import ports and core. Begin with transactions.py.
"""
