"""Commands for daily use: objects and listings, the trash, S3 keys and the gateway, the services, the demo.

May import `terminal` and `files`. Begin with objects.py. Commands are listed in app.py of the package above.
"""
