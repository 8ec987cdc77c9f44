"""Where a plan's estimate and the program that XLA compiles of it disagree, and the smallest
function that shows it."""

from kiwi.deviation.kernels import Deviation, KernelDeviation, deviation
from kiwi.deviation.reduce import Witness, reduce_deviation

__all__ = ["Deviation", "KernelDeviation", "Witness", "deviation", "reduce_deviation"]
