"""Measures the product, and compares it with the best that the servers can do (floor) and with storing without it
(naive).

meter.py measures, figures.py summarises, offline.py and objects.py prepare a store. May import everything below the
CLI. Start reading with pipeline.py.
"""
