"""Every metric, declared once: its name, meaning and labels, and what an operator does about it.

docs/METRICS.md and the dashboard are generated from them. May import core. Begin with metric.py, then metrics.py.
"""
