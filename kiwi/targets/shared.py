"""The rules that XLA's compilers share, with which a target of another backend begins."""

from kiwi.targets.rules import narrow_moves, overwritten_operands, whole_scans

SHARED = (narrow_moves.RULE, overwritten_operands.RULE, whole_scans.RULE)
"""The shared rules, in the order in which they state facts."""
