"""The step to be planned: a traced call, and the shardings that its caller gives."""

from dataclasses import dataclass
from typing import Any

import jax

from kiwi.calls.replaced_arguments import replaced_arguments
from kiwi.calls.signature import flatten_prefix, to_tensor_sharding
from kiwi.calls.traced import Traced
from kiwi.hlo.program import Program
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh, TensorSharding


@dataclass(frozen=True, eq=False)
class StepToPlan:
    """A traced call and the `out_shardings` of its caller, a prefix of the result's pytree."""

    traced: Traced
    out_shardings: Any = None

    @property
    def units(self) -> UnitGraph:
        """The units of the traced program."""
        return self.traced.units

    @property
    def program(self) -> Program:
        """The traced program."""
        return self.traced.units.graph.program

    def given_arguments(self, mesh: DeviceMesh) -> dict[int, TensorSharding]:
        """By value index the shardings that `in_shardings` gives arguments."""
        call = self.traced.call
        return {
            self.program.arguments[k]: to_tensor_sharding(
                given, call.shapes[k].shape, mesh, call.paths[k]
            )
            for k, given in call.given_shardings.items()
        }

    def given_results(self, mesh: DeviceMesh) -> dict[int, TensorSharding]:
        """By position the shardings that `out_shardings` gives results."""
        if self.out_shardings is None:
            return {}
        program = self.program
        shell = jax.tree.unflatten(self.traced.out_tree, list(range(len(program.results))))
        given = flatten_prefix(self.out_shardings, shell, "out_shardings")
        found = {}
        for position, (sharding, result) in enumerate(zip(given, program.results, strict=True)):
            if sharding is not None and isinstance(result, int):
                shape = program.values[result].shape
                found[position] = to_tensor_sharding(sharding, shape, mesh, f"result {position}")
        return found

    def replaced_arguments(self) -> dict[int, int]:
        """By position of a result the value index of the argument that it replaces in the next
        step, whatever `out_shardings` gives it."""
        return replaced_arguments(self.traced.call, self.traced.out_tree, self.units)
