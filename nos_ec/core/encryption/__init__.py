"""Defines what is stored about the encryption of an object (docs/adr/0054). The ciphers are in
`nos_ec.engine.encryption`."""
