"""Training steps in plain JAX and optax, to be planned.

`mlp`, `gpt`, `encoder`, `encoder_decoder`, `vit`, `moe`, `state_space`, `lstm`, `convnet` and
`unet` offer the same functions:

- `SIZES`: configurations (frozen dataclasses) by name;
- `init_params(config, key)`: a pytree of parameters;
- `make_train_step(config, remat=None)`: `train_step(state, batch) -> (state, metrics)`, a pure
  function for `jax.jit` or `kiwi.jit`;
- `make_state(config, seed)`, `make_batch(config, seed)`: arrays that the step runs on;
- `abstract_state(config)`, `abstract_batch(config)`: the shapes of these arrays, for
  planning without memory;
- `data_parallel_specs`, `fsdp_specs`, `megatron_specs`, `mixed_specs`: hand-written shardings.

A batch is a dict of arrays with the batch as leading dimension. Two of its keys are "inputs" and
"targets".
"""
