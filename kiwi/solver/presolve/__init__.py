"""Exact reductions of a `Network`, each with a way back: `apply(net) -> Reduction`."""
