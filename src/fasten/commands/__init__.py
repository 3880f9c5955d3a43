"""The commands, in groups; `cli.py` makes one app of them."""
