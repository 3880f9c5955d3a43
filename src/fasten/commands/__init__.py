"""The commands, in groups; `cli.py` combines them into one app."""
