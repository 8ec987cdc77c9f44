"""Recorded plans and programs: the gate for changes that should alter nothing.

    python -m benchmarks.goldens check --jobs 2                 # everything
    python -m benchmarks.goldens check mlp --target v5e         # one model for one target
    python -m benchmarks.goldens check gpt vit --budget free    # two models, all targets
    python -m benchmarks.goldens record                         # writes `recorded/` anew
    python -m benchmarks.goldens record mlp --target cpu        # one file of it

A cell is one of ten training steps (`benchmarks.goldens.models`), planned for one target under one
budget. Targets are a CPU, H100s and v5es. Their plans are not compiled, so that a cell takes
seconds. Two small steps are also planned with the compile check of each target ("cpu-checked" and
so on). These cells are skipped where the compiler is not installed. The closed loop of
"h100-sxm-tightened" and "v5e-tightened" compiles up to ten programs: they run only if `--target`
names them.

The budgets are the profile's memory ("free") and two shares of the free plan's estimated peak
("loose", "tight"). They are recorded in bytes, and `check` plans under the recorded bytes.

A cell records the outcome: the decisions, the shardings, the estimate, the notes, the printed
summary, and digests of the emitted programs as StableHLO, with a barrier at every step and with
only the needed barriers. An error is recorded by its type and text. Numbers and texts must be equal
to the last digit: searches count work and not seconds. A cell cannot be recorded if the clock ended
its search.

`check` prints the differences, and exits with 1 if there are any. An intended difference gets a
line in `differences.md`, in the commit that records it.

The files are `recorded/<model>.<target>.json`. A file lists operators, arguments and results once.
A cell names them by ranges of positions, for example {"P('x',) keep": "0-7 9"}.
"""
