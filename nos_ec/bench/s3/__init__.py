"""`bench s3` sends the same requests over S3 to our gateway and to radosgw, in turns.

May import `servers`, `life` and the modules of bench itself. Start reading with s3_bench.py.
"""
