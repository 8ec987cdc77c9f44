"""The paper's formulations of sharding together with recomputation, and Kiwi's own beside them.

- `staged`: the paper's full model (Eq. 1, 12-23), tightened and linearised.
- `reduced`: the paper's model of reduced complexity (Eq. 2-11, 24-31).
- `joint`: Kiwi's problem form, which allows chains of recomputation.

Each formulation takes a `ShardedGraph`. Its answer is priced by simulating the schedule.
"""

from kiwi.literature.formulations.sharded_graph import Answer as Answer
from kiwi.literature.formulations.sharded_graph import Operator as Operator
from kiwi.literature.formulations.sharded_graph import Read as Read
from kiwi.literature.formulations.sharded_graph import ShardedGraph as ShardedGraph
from kiwi.literature.formulations.sharded_graph import Tie as Tie
from kiwi.literature.formulations.sharded_graph import price as price
from kiwi.literature.formulations.solve import FORMULATIONS as FORMULATIONS
from kiwi.literature.formulations.solve import solve_formulation as solve_formulation
