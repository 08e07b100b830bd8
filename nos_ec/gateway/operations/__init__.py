"""The operations of S3 on buckets, objects and multipart uploads, and the configurations of buckets.

May import `auth` and `message`, engine, ports, core and s3. Begin with object_operations.py.
"""
