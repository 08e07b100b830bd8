"""The gateway as a server: processes, sockets, TLS, HTTP, access log, counters and probes.

May import the other packages of the gateway, monitoring and composition. Begin with service.py (dispatch), then app.py
(HTTP) and http_server.py (assembles the parts).
"""
