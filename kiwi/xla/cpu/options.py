"""What XLA:CPU is told when it compiles a plan."""

CPU_COMPILER_OPTIONS = {
    "xla_disable_hlo_passes": "cse_barrier_expander,cpu-all-reduce-combiner,"
    "dot-library-rewriter,small-while-loop-hoisting"
}
"""Passes of XLA:CPU without which it treats memory as accelerators do.

- `cse_barrier_expander` removes barriers before the last common-subexpression elimination,
  which would merge every recomputation with the original.
- `cpu-all-reduce-combiner` merges all gradients' all-reduces, which keeps every gradient.
- `dot-library-rewriter` hands matmuls and reductions to a library for CPUs, whose kernels do
  not take the elementwise chain in front of a reduction: it is materialised instead.
- `small-while-loop-hoisting` makes one kernel of a loop on little data, in which XLA:CPU cannot
  emit the barriers that the first pass would have removed (it fails, or ends the process).
"""

CPU_CHECK_OPTIONS = {
    **CPU_COMPILER_OPTIONS,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
"""Of a check: LLVM optimises nothing, because nothing is run. What XLA keeps in memory and sends is
settled before: `gpt-13b-4l` as planned, and a U-Net, a convnet and an MLP on (2, 4), compiled to
the same bytes, in 10 to 40 % less time."""
