"""`bench s3`: the same requests over S3 to our gateway and to radosgw, in turns.

May import `servers`, `life` and the modules of bench itself. Begin with s3_bench.py.
"""
