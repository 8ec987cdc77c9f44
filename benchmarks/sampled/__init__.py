"""Random models: the accuracy of plans for steps that nobody tuned, as compiled.

    python -m benchmarks.sampled --seed=20261129 --models=20 --profiles=h100-sxm,v5e

draws training steps from the blocks of `benchmarks.sampled.blocks`, plans each for every profile,
mesh and budget, and compiles the plans and hand-written steps with the profile's compiler. Nothing
is executed. A row is one line of the results. An interrupted run continues where it stopped.

    python -m benchmarks.sampled.show --seed=20261129 --index=7

prints one model. `--out=FILE.py` writes a file for `kiwi plan` and `kiwi deviation`.
"""
