"""The S3 gateway: the code between the protocol (nos_ec.s3) and the store.

Each package may import those before it: `auth` (who may do what), `message` (one request and its answer), `operations`
(what S3 offers), `server` (processes, sockets, HTTP). May import library, composition, engine, s3 and below. Begin with
server/service.py, which authenticates a request and dispatches it to its operation.
"""
