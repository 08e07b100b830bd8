"""Assembles an open store: the adapters that the settings name, and the engine on top of them.

May import adapters, the engine, monitoring and settings; services and commands import it. Begin with wiring.py, then
its sides (client_side.py, worker_side.py, operator_side.py), then backends.py.
"""
