"""What XLA:TPU does with a program, as far as memory and communication depend on it."""

from kiwi.xla.rules.base import Rules


class TpuRules(Rules):
    """The rules of XLA:TPU."""
