"""What the S3 gateway is made of, besides the protocol (nos_ec.s3) and the store.

accounts        access keys and what accounts may do, as operators manage them
sealed_secrets  the secrets of access keys, encrypted under a master key
master_keys     the master keys of the settings
"""
