"""The whole main job on a real folder, on whatever backends are configured: what `nos-ec demo` runs."""
