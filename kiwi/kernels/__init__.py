"""The kernels that the compiler will run for each unit of a step.

Rules of targets state facts about the kernels. The planning problem and the emission read them.
"""
