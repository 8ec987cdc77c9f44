"""`python -m kiwi` is the command `kiwi`."""

from kiwi.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
