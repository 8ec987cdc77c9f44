"""Recorded plans and programs: the gate of changes that should alter nothing.

    python -m benchmarks.goldens check --jobs 2                 # everything
    python -m benchmarks.goldens check mlp --target v5e         # one model for one target
    python -m benchmarks.goldens check gpt vit --budget free    # two models, all targets
    python -m benchmarks.goldens record                         # writes `recorded/` anew
    python -m benchmarks.goldens record mlp --target cpu        # one file of it

A cell is one of ten training steps (`benchmarks.goldens.models`), planned for one target under one
budget. Targets are a CPU, H100s and v5es, whose plans are not compiled, so that a cell takes
seconds. Two small steps are also planned with the compile check of each target ("cpu-checked" and
so on; skipped where the compiler is not installed). The closed loop of "h100-sxm-tightened" and
"v5e-tightened" compiles up to ten programs: they run only where `--target` names them.

Budgets are the profile's memory ("free") and two shares of the peak that the free plan is estimated
to have ("loose", "tight"). They are recorded in bytes, and `check` plans under the recorded ones.

A cell records the outcome: the decisions, the shardings, the estimate, the notes, the printed
summary, and digests of the emitted programs as StableHLO, with a barrier at every step and with
the needed barriers alone. An error is recorded by its type and text. Numbers and texts must be
equal to the last digit: searches count work and not seconds. A cell whose search the clock ended
cannot be recorded.

`check` prints what differs, and exits with 1 if anything does. A difference that a change is meant
to make gets a line in `differences.md`, in the commit that records it.

The files are `recorded/<model>.<target>.json`. A file lists operators, arguments and results once;
a cell names them by ranges of positions, for example {"P('x',) keep": "0-7 9"}.
"""
