"""Protocols between the engine and the world. Their docstrings are the contract adapters are held to."""
