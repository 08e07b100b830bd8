"""The S3 protocol: values in, values out. It knows no socket, no clock and nothing of the engine.

request     a request as it was sent, before anything is decoded
names       names of buckets and objects, and which of them a request is about
operations  which operation a request asks for
signing     Signature Version 4, checked on the server's side
signing_v2  Signature Version 2 of presigned URLs
hoisted     headers in the query of a presigned URL
chunked     bodies in aws-chunked encoding, with and without signatures and trailers
checksums   what a request says of its body, computed and compared piece by piece
errors      error codes, their HTTP status, and what else an answer says
post_policy  what a form may upload, and who has signed it
cors        cross-origin requests
answers     the XML of answers
documents   the XML of request bodies
"""
