"""What XLA:TPU says of plans for TPUs, without one.

    python -m benchmarks.tpu --measurements edges,options

- `edges`: for five programs the largest batch for which Kiwi has a plan, which XLA:TPU compiles,
  and the next one, which it refuses;
- `published`: steps whose memory others have published, rebuilt: Kiwi's prediction, and XLA:TPU's;
- `others`: models that no rule of Kiwi's was made after, predicted and compiled;
- `options`: under which compiler options plans keep their memory, and their collectives overlap;
- `arrangements`: what plans need by XLA:TPU's schedulers, and by how it places buffers;
- `check_cost`: seconds of a check, in parts of the compilation that it waits for;
- `generated`: whether XLA:TPU generates code for plans as they run;
- `big`: Llamas of 8 and 70 billion parameters on whole slices.

Each measurement is a JSON file of rows, with a table beside. A run that was interrupted goes on
where it stopped. Nothing is run on a device, and no code is generated but for `generated`.
"""
