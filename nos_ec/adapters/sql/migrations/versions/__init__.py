"""One module per schema version. What it does is never changed once released."""
