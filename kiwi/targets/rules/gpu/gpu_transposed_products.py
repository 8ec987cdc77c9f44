"""XLA:GPU may assign a matmul's result an order of dimensions that cuBLAS does not write.

Layouts are assigned before fusion. Plans constrain the result of a matmul to the order of the
operator itself (`kiwi.emit.interpreter.in_written_order`).
"""

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import NotShown

RULE = Rule(
    name="gpu_transposed_products",
    does="What a matmul yields may be laid out in an order that cuBLAS does not write, unless the "
    "program says its order.",
    component="GpuLayoutAssignment",
    observed="jax 0.10.2, H100",
    evidence=("tests/xla/gpu/test_compiler.py",),
    witness=NotShown(
        "Layout assignment does so in steps of whole models alone; small programs keep the order. "
        "The test compiles a step of a vision transformer with the constraint and without."
    ),
    states=stating(transposes_products=True),
)
