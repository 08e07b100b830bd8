"""One request and its answer: the decoded body, headers as attributes, conditions, version ids, errors.

May import `auth`, engine, ports, core and s3. Begin with call.py and reply.py.
"""
