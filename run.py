"""The only entry: python run.py <command>."""

import sys

from app.cli import main

if __name__ == "__main__":
    sys.exit(main())
