"""Exact reductions of a `Network`. Most return a `Reduction`, which has the way back."""
