"""Deviations between a plan's estimate and its compiled program, and the search for the smallest
function that shows one.
"""

from kiwi.deviation.kernels import Deviation, KernelDeviation, deviation
from kiwi.deviation.reduce import Witness, reduce_deviation

__all__ = ["Deviation", "KernelDeviation", "Witness", "deviation", "reduce_deviation"]
