"""XLA:CPU gives an FFT operands in any order, and its kernel refuses all but row-major ones.

The program compiles, and fails when it runs (`fft_thunk.cc`, "RET_CHECK failure"). Plans keep
operands and results of FFTs row-major there.
"""

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import NotShown

RULE = Rule(
    name="cpu_row_major_ffts",
    does="The kernel of an FFT fails at run time on operands that do not lie row-major.",
    component="FftThunk of XLA:CPU",
    observed="jaxlib 0.10.2",
    evidence=("tests/emit",),
    witness=NotShown("The module compiles; the kernel fails when it runs."),
    states=stating(row_major_primitives=frozenset({"fft"})),
)
