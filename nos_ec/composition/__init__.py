"""Puts an open store together: the adapters that the settings ask for, and the engine over them."""
