"""XLA:TPU's figures for plans for TPUs, without a TPU.

    python -m benchmarks.tpu --measurements edges,options

- `edges`: for five programs the largest batch for which Kiwi has a plan, which XLA:TPU compiles,
  and the next one, which XLA:TPU refuses;
- `published`: rebuilt steps with published memory, predicted by Kiwi and compiled by XLA:TPU;
- `others`: models that no rule of Kiwi was written for, predicted and compiled;
- `options`: the compiler options under which plans keep their memory, and their collectives
  overlap;
- `arrangements`: the memory of plans by XLA:TPU's schedulers, and by its placement of buffers;
- `check_cost`: the seconds of a check, as a share of the compilation that it waits for;
- `generated`: whether XLA:TPU generates code for plans as they run;
- `big`: Llamas of 8 and 70 billion parameters on whole slices.

Each measurement is a JSON file of rows, with a table beside it. An interrupted run continues where
it stopped. Nothing runs on a device, and only `generated` generates code.
"""
