"""The step to be planned: a traced call, and the shardings that its caller gives."""

from dataclasses import dataclass
from typing import Any

from kiwi.calls.replaced_arguments import replaced_arguments
from kiwi.calls.signature import Call, result_shardings, to_tensor_sharding
from kiwi.hlo.program import Program
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh, TensorSharding


@dataclass(frozen=True, eq=False)
class StepToPlan:
    """A traced call, with the structure of its result and the units of its program.

    `seconds` is the time of tracing and lowering.
    """

    call: Call
    out_tree: Any
    units: UnitGraph
    seconds: float = 0.0

    @property
    def program(self) -> Program:
        """The traced program."""
        return self.units.graph.program

    def given_arguments(self, mesh: DeviceMesh) -> dict[int, TensorSharding]:
        """The arguments' shardings from `in_shardings`, by value index."""
        call = self.call
        return {
            self.program.arguments[k]: to_tensor_sharding(
                sharding, call.shapes[k].shape, mesh, call.paths[k]
            )
            for k, sharding in call.given_shardings.items()
        }

    def given_results(self, mesh: DeviceMesh) -> dict[int, TensorSharding]:
        """The results' shardings from `out_shardings`, by position."""
        result_layouts, program = result_shardings(self.call.options, self.out_tree), self.program
        shardings = {}
        for position, (sharding, result) in enumerate(
            zip(result_layouts, program.results, strict=True)
        ):
            if sharding is not None and isinstance(result, int):
                shape = program.values[result].shape
                shardings[position] = to_tensor_sharding(
                    sharding, shape, mesh, f"result {position}"
                )
        return shardings

    def replaced_arguments(self) -> dict[int, int]:
        """For the position of each result that replaces an argument in the next step, the
        argument's value index. `out_shardings` is not considered."""
        return replaced_arguments(self.call, self.out_tree, self.units)
