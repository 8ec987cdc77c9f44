"""XLA:CPU may give an FFT operands in any order, but the kernel accepts only row-major operands.

Such a program compiles, and fails when it runs (`fft_thunk.cc`, "RET_CHECK failure"). Plans for
XLA:CPU constrain operands and results of FFTs to be row-major.
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
