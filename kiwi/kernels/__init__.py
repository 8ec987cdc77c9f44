"""The kernels that the compiler will run for each unit of a step, as facts for problem and
emission.
"""
