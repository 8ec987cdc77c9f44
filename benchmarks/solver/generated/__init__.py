"""Instances made from numbers: one half to tune the solver on, one half that is only measured."""
