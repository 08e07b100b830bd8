"""Encrypts and decrypts the bytes of objects above the store, which sees only ciphertext (docs/adr/0054)."""
