"""Runs the whole pipeline on a real folder, on the configured backends, for `nos-ec demo`."""
