"""The version of Kiwi. Every layer may import this module."""

VERSION = "0.1.0"
