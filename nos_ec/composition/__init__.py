"""Assembles an open store: the adapters that the settings name, and the engine on top of them.

May import adapters, the engine, monitoring and settings; services and commands import it. Begin with wiring.py, then
backends.py.
"""
