"""Tiles of values that maps compute from values with known tiles.

Layout assignment gives the result of a map the order of dimensions of its operand, unless something
else decides it. The step's results lie as its arguments do.
"""

from collections.abc import Mapping

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.graph import HloGraph
from kiwi.kernels.storage import MinorDimensions


def through_maps(
    graph: HloGraph, minor_of: Mapping[int, MinorDimensions]
) -> dict[int, MinorDimensions]:
    """By value, its minor dimensions: those given, and those of all maps behind them."""
    program = graph.program
    values, results = program.values, program.result_values
    minor_dimensions = {value: minor for value, minor in minor_of.items() if value not in results}
    pending = list(minor_dimensions)
    for value in pending:
        for index in program.readers[value]:
            if not is_map(graph, index):
                continue
            (output,) = program.equations[index].outputs
            is_new = output not in minor_dimensions and output not in results
            if is_new and values[output].shape == values[value].shape:
                minor_dimensions[output] = minor_dimensions[value]
                pending.append(output)
    return minor_dimensions
