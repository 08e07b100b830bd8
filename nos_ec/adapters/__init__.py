"""Adapters: one package per technology. Adapters never import each other."""
