"""Commands for daily use: objects and listings, the trash, S3 keys and the gateway, the services, the demo.

May import `terminal` and `files`. Start reading with objects.py. The app.py of the parent package lists all commands.
"""
