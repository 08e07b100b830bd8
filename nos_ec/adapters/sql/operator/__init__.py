"""Transactions for operators and for work on the whole store: figures, inspection, repairs, rebuilds, scrubs.

May import `driver`, `tables`, `blocks` and `objects`, ports and core. Begin with inspection.py.
"""
