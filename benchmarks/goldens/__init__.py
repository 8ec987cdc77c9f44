"""What Kiwi does today, recorded, so that a change that should alter nothing can be checked.

    python -m benchmarks.goldens record            # everything, about 20 minutes if idle
    python -m benchmarks.goldens record gpt vit    # some examples
    python -m benchmarks.goldens confirm           # which of them does the clock decide?
    python -m benchmarks.goldens check             # plans again, prints what differs
    python -m benchmarks.goldens check gpt --planner joint --planner command --budget 75%

Every example of `benchmarks.goldens.models` is planned for three budgets by five planners, each
plan compiled for virtual CPU devices. The budgets are "free", the profile's memory, and two shares
of the estimated peak of the free plan; their bytes are recorded, and `check` plans under those.
The planner "command" stands for calls of `python -m kiwi plan`: what it prints, and how it exits.

Only Kiwi's public interface is used, so that modules may move. Whole numbers and texts have to be
equal, floats to 1e-9 of their size. Searches that the clock ended ("clock": true), then or now,
have to end alike, with step time and peak within 5 %: "close". On a busy machine these are more;
`confirm`, some time after `record`, plans again to find out which they are, and keeps the cells
that the clock had no part in. `check` exits with 1 where anything else differs.

Results are `recorded/<example>.json`. Operators, arguments and results are tables of an example; a
cell names them by ranges of positions, e.g. {"P('x',) keep": "0-7 9"}.
"""
