"""Assembles an open store: the adapters that the settings name, and the engine on top of them."""
