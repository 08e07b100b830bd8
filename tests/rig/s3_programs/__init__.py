"""Programs of S3 clients in Python. They run in the environment of deploy/dev/s3_clients.sh, and import nothing of
nos_ec. Each one uses a bucket through two gateways, writing to one and reading from the other, and compares all bytes.

usage: python -m tests.rig.s3_programs.with_boto3 URL URL BUCKET, with AWS's variables in the environment
"""
