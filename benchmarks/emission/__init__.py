"""The cost of barriers: compiled programs of plans beside programs of `jax.jit`.

    python -m benchmarks.emission --compilers cuda,tpu --models mlp,gpt --cycles planned,plain

The models are those of `benchmarks.fidelity` and a scanned Llama of 8B parameters. For each model,
budget and compiler, the benchmark compiles these variants without devices:

- `planned`: the plan as it is emitted;
- `every_step`: the plan with a barrier at every step;
- `no_barrier`: the plan without barriers, so that XLA merges recomputed operators with the first
  computation;
- `plain`: `jax.jit` with the plan's shardings of arguments and results;
- `checkpoint`: the same with `jax.checkpoint` around each layer.

A row holds kernels and their traffic, with loops weighted by the trip counts that XLA writes
(`benchmarks.emission.kernels`), collectives, matmuls, temporaries and the peak. All of these are
read before code is generated. With `--cycles` XLA:TPU also generates code, and the row holds its
cost model's cycles.
"""
