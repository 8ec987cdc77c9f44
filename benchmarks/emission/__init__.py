"""What barriers cost: compiled programs of plans beside those of `jax.jit`.

    python -m benchmarks.emission --compilers cuda,tpu --models mlp,gpt

For each model of `benchmarks.fidelity`, budget and compiler, as compiled without devices:

- `planned`: the plan as it is emitted; `every step`: with a barrier at every step;
- `plain`: `jax.jit` with the plan's shardings of arguments and results;
- `checkpoint`: the same with `jax.checkpoint` around each layer.

Kernels, traffic (results and operands of the kernels of the entry computation), collectives and
matmuls, before code is generated; temporaries; the peak.
"""
