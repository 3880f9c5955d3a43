"""Run the command line: `python -m fasten`."""

import sys

from fasten.cli import main

if __name__ == "__main__":
    sys.exit(main())
