"""What barriers cost: compiled programs of plans beside those of `jax.jit`.

    python -m benchmarks.emission --compilers cuda,tpu --models mlp,gpt --cycles planned,plain

For each model of `benchmarks.fidelity` and a scanned Llama of 8B parameters, budget and compiler,
as compiled without devices:

- `planned`: the plan as it is emitted; `every_step`: the same with a barrier at every step;
  `no_barrier`: without any, so that XLA merges what is recomputed with the first computation;
- `plain`: `jax.jit` with the plan's shardings of arguments and results;
- `checkpoint`: the same with `jax.checkpoint` around each layer.

Kernels and their traffic, loops by the trip counts that XLA writes (`benchmarks.emission.kernels`),
collectives, matmuls, temporaries and the peak, before code is generated. `--cycles` has XLA:TPU
generate it too, and adds its cost model's cycles.
"""
