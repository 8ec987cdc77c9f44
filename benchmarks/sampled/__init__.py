"""Models drawn at random: how well plans of steps that nobody tuned for hold as compiled.

    python -m benchmarks.sampled --seed=20261129 --models=20 --profiles=h100-sxm,v5e

draws training steps from the blocks of `benchmarks.sampled.blocks`, plans each for every profile,
mesh and budget, and compiles the plans, and steps by hand, with the profile's compiler. Nothing is
run. A row is one line of the results; a run that was interrupted goes on where it stopped.

    python -m benchmarks.sampled.show --seed=20261129 --index=7

prints one model, and `--out=FILE.py` writes a file for `kiwi plan` and `kiwi deviation`.
"""
