"""The S3 gateway: what lies between the protocol (nos_ec.s3) and the store.

server             puts the gateway together, and serves it
app                HTTP: requests, bodies, answers
service            who sends a request, what it asks for, and its errors
call, reply        one request, and its answer
access             who may do what, remembered for a short time
bucket_operations  buckets
object_operations  objects
absent_configurations  configurations that no bucket has
listings           listings of objects
attribute_changes  changes of what an object has beside its bytes
failures           failures of the store, as S3 has them
post_forms         uploads by forms of browsers
form_body          the body of such a form
lifecycle, lifecycle_xml  when objects expire: configurations of buckets, headers of objects
policies           bucket policies, and what they add to the rights of accounts
public_access      public access blocks and ownership controls of buckets
proxies            what proxies in front of the gateway say of clients
cors               cross-origin requests
body               the body of a request, decoded and checked
preconditions      conditions and ranges
object_headers     headers of objects, as attributes
acls               ACLs: canned ones and grants
accounts           access keys and what accounts may do, as operators manage them
sealed_secrets     the secrets of access keys, encrypted under a master key
master_keys        the master keys of the settings
"""
