"""The command `lagrax`; `app.py` puts its parts together."""
