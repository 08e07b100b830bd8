"""The S3 protocol as pure functions and values. It uses no socket and no clock, and does not import the engine.

request     a request as it was sent, before anything is decoded
names       names of buckets and objects, and the ones that a request addresses
operations  which operation a request asks for
signing     Signature Version 4, checked on the server's side
signing_v2  Signature Version 2 of presigned URLs
hoisted     headers in the query of a presigned URL
chunked     bodies in aws-chunked encoding, with and without signatures and trailers
checksums   checksums of a body, computed piece by piece and compared with the request
errors      error codes, with their HTTP status and further fields of the answer
post_policy  what a POST form may upload, and who signed it
cors        cross-origin requests
answers     the XML of answers
documents   the XML of request bodies
"""
