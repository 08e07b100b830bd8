"""The operations of S3 on buckets, on documents of buckets, on objects, and on multipart uploads.

May import `auth` and `message`, engine, ports, core and s3. Begin with object_operations.py and
bucket_documents.py.
"""
