"""Tries the package: builds sdist and wheel, installs each into an empty environment, and plans a
step there.

    python -m benchmarks.packaging                               # this Python
    python -m benchmarks.packaging python3.11 python3.12 python3.13 --out results.json

The sdist is installed with the first Python, the wheel with all of them. Needs the network to
install Kiwi's dependencies. The exit code is 1 if anything fails.
"""
