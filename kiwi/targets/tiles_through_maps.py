"""Propagation of tiles from values through the maps that read them.

Layout assignment gives the result of a map the same minor dimensions as its operand, unless another
constraint decides the layout. Results of the step keep the default layout of its arguments, so
propagation leaves them out.
"""

from collections.abc import Mapping

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.graph import HloGraph
from kiwi.kernels.storage import MinorDimensions


def through_maps(
    graph: HloGraph, minor_of: Mapping[int, MinorDimensions]
) -> dict[int, MinorDimensions]:
    """Returns the minor dimensions of the values of `minor_of` and of all values that maps of the
    same shape compute from them. Results of the step are left out."""
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
