"""The rules that hold for all of XLA's compilers. A target of a new backend starts with them."""

from kiwi.targets.rules import narrow_moves, overwritten_operands, whole_scans

SHARED = (narrow_moves.RULE, overwritten_operands.RULE, whole_scans.RULE)
"""The shared rules, in the order in which a target applies them."""
