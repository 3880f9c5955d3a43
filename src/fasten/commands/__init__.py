"""The commands, in groups; `cli.py` holds the app and those for a single run."""
