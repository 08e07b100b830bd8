"""S3 clients and gateways for tests."""
