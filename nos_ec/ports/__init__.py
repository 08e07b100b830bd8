"""Protocols between the engine and the outside world. Their docstrings are the contract that adapters must keep."""
