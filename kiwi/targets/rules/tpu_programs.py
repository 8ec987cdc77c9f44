"""What XLA:TPU does with a whole program: einsums, function units, constants, host copies."""

from kiwi.hlo.large_operators import multiplies
from kiwi.kernels.graph import KernelGraph
from kiwi.targets.rule import Rule, stating

_OBSERVED = "jax 0.10.2, libtpu 0.0.42.1, v5e"

WINDOWED_EINSUMS = Rule(
    name="tpu_windowed_einsums",
    does="Matmuls run while their operands are gathered, and their results scattered, piece by "
    "piece (Wang et al., Overlap communication with dependent computation via decomposition, "
    "ASPLOS 2023).",
    component="WindowedEinsumHandler",
    observed=_OBSERVED,
    evidence=("benchmarks/schedules",),
    states=stating(pipelines_matmuls=True),
)


def _apply_function_units(graph: KernelGraph) -> KernelGraph:
    hlo = graph.units.graph
    apart = {
        unit.index: frozenset(
            place for place, k in enumerate(unit.equations) if not multiplies(hlo, k)
        )
        for unit in graph.units.units
    }
    return graph.stating("functions_apart", apart)


FUNCTION_UNITS = Rule(
    name="tpu_function_units",
    does="A kernel multiplies matrices and computes functions at the same time, in units of their "
    "own.",
    component="hardware: MXU and VPU",
    observed=f"{_OBSERVED}: a matmul of (4096, 1024) by (1024, 1024) in bfloat16 is stated at "
    "71 us with four GELUs behind it or none; these alone at 58 us",
    evidence=("tests/problem/test_costs.py",),
    apply=_apply_function_units,
)

LATE_CONSTANTS = Rule(
    name="tpu_late_constants",
    does="Large constants are computed where they are read.",
    component="fusion of XLA:TPU",
    observed=_OBSERVED,
    evidence=("tests/emit/test_max_pooling.py",),
    states=stating(makes_constants_early=False),
)

HOISTED_COPIES = Rule(
    name="tpu_hoisted_copies",
    does="Copies from and to the host are moved in front of barriers. Values leave the device, "
    "also those that scans stack.",
    component="HostOffloader, async copy scheduling of XLA:TPU",
    observed=_OBSERVED,
    evidence=("benchmarks/host_memory",),
    states=stating(hoists_copies=True, offloads=True, offloads_in_scans=True),
)
