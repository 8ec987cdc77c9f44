"""Opens loops and conditionals: inlines their bodies into a program, see `kiwi.hlo.loops`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from kiwi.hlo import loops
from kiwi.hlo.building import ProgramBuilder
from kiwi.hlo.host_memory import FETCH
from kiwi.hlo.loops import Carry, Loop, LoopKind, ScanOperands, border_equation
from kiwi.hlo.program import LARGE_BYTES, Equation, Literal, join_scopes
from kiwi.hlo.trips import trips_of_while


class LoopOpener(ProgramBuilder, ABC):
    """A builder of programs that opens the loops of the functions that it inlines."""

    @abstractmethod
    def _inline(self, jaxpr: Any, env: dict[Any, Any], scope: str, loop: int | None) -> None:
        """Adds the equations of a jaxpr to the program.

        - `env`: variable → value index or literal. The variables that the equations bind are added.
        - `scope`: the name scopes of the calls around.
        - `loop`: the loop around; None outside of loops.
        """

    def _inline_closed(
        self, closed: Any, inputs: Sequence[int | Literal], scope: str, loop: int | None
    ) -> list[int | Literal]:
        env: dict[Any, Any] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
        self._bind_constants(env, closed.jaxpr.constvars, closed.consts)
        self._inline(closed.jaxpr, env, scope, loop)
        return [self._read(env, variable) for variable in closed.jaxpr.outvars]

    def _open(
        self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str, parent: int | None
    ) -> list[int | Literal]:
        """Inlines the body of a loop, or all branches of a conditional. Returns the equation's
        results."""
        opened = {"scan": self._open_scan, "while": self._open_while, "cond": self._open_cond}
        return opened[eqn.primitive.name](eqn, inputs, scope, parent)

    def _open_scan(
        self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str, parent: int | None
    ) -> list[int | Literal]:
        operands = loops.scan_operands(eqn)
        loop = self._new_scan(operands, parent)
        border = _Border(self, eqn.source_info, scope, loop)
        first_carry, first_stacked = operands.constants, operands.constants + operands.carries
        variables = operands.body.jaxpr.invars[first_carry:first_stacked]
        unchanged = _unchanged_carries(operands.body.jaxpr, first_carry, first_stacked)
        current = [
            initial if variable in unchanged else border.carry(initial, k)
            for k, (variable, initial) in enumerate(
                zip(variables, inputs[first_carry:first_stacked], strict=True), start=first_carry
            )
        ]
        slices = [border.slice(stacked) for stacked in inputs[first_stacked:]]
        inner = join_scopes(scope, str(eqn.source_info.name_stack))
        outputs = self._inline_closed(
            operands.body, (*inputs[:first_carry], *current, *slices), inner, loop
        )
        following, ys = outputs[: operands.carries], outputs[operands.carries :]
        carries = zip(variables, current, following, strict=True)
        loop_carries = tuple(
            Carry(carried, n)
            for variable, carried, n in carries
            if variable not in unchanged and isinstance(carried, int)
        )
        self._loops[loop] = replace(self._loops[loop], carries=loop_carries)
        finals = [
            n if variable in unchanged else border.result(n)
            for variable, n in zip(variables, following, strict=True)
        ]
        stacks = [
            self._stacked_result(border, y, variable, eqn, inner, parent)
            for y, variable in zip(ys, eqn.outvars[operands.carries :], strict=True)
        ]
        return [*finals, *stacks]

    def _stacked_result(
        self,
        border: "_Border",
        y: int | Literal,
        variable: Any,
        eqn: Any,
        scope: str,
        parent: int | None,
    ) -> int | Literal:
        """Returns the stack of a scan's output `y`, which is the result `variable` of the scan.

        A literal belongs to no iteration, and is repeated outside of the loop. A result that
        nothing reads gets an empty literal.
        """
        if isinstance(variable, jex.DropVar):
            return Literal(None)
        if isinstance(y, int):
            return border.stack(y)
        aval = variable.aval
        repeated = partial(jnp.full, aval.shape, dtype=aval.dtype)
        return self._with(repeated, (y,), eqn, scope, parent)

    def _open_while(
        self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str, parent: int | None
    ) -> list[int | Literal]:
        """Opens a `while`. Its condition is inlined in front of the loop and at the end of the
        body."""
        body, condition = eqn.params["body_jaxpr"], eqn.params["cond_jaxpr"]
        cond_count = eqn.params["cond_nconsts"]
        constant_count = cond_count + eqn.params["body_nconsts"]
        start, initial = inputs[:cond_count], inputs[constant_count:]
        trips = trips_of_while(eqn, (*start, *initial), self._while_trips)
        loop = self._new_loop(parent, LoopKind.WHILE, len(self._loops), trips)
        border = _Border(self, eqn.source_info, scope, loop)
        inner = join_scopes(scope, str(eqn.source_info.name_stack))

        def goes_on(carried: Sequence[int | Literal], place: int | None) -> int | Literal:
            (holds,) = self._inline_closed(condition, (*start, *carried), inner, place)
            return self._with(_any, (holds,), eqn, inner, place) if is_batched else holds

        is_batched = bool(condition.out_avals[0].shape)
        test = border.carry(goes_on(initial, parent), -1)
        unchanged = _unchanged_carries(
            body.jaxpr, constant_count - cond_count, len(body.jaxpr.invars)
        )
        variables = body.jaxpr.invars[constant_count - cond_count :]
        current = [
            value if variable in unchanged else border.carry(value, k)
            for k, (variable, value) in enumerate(zip(variables, initial, strict=True))
        ]
        following = self._inline_closed(
            body, (*inputs[cond_count:constant_count], *current), inner, loop
        )
        if is_batched:  # Batch elements whose condition no longer holds keep their values.
            (goes,) = self._inline_closed(condition, (*start, *current), inner, loop)
            is_unchanged = [variable in unchanged for variable in variables]
            following = [
                old if same else self._with(_chosen, (goes, new, old), eqn, inner, loop)
                for same, new, old in zip(is_unchanged, following, current, strict=True)
            ]
        pairs = zip(variables, current, following, strict=True)
        carries = [
            Carry(value, self._made_in(loop, n, eqn, inner))
            for variable, value, n in pairs
            if variable not in unchanged and isinstance(value, int)
        ]
        carries.append(Carry(test, self._made_in(loop, goes_on(following, loop), eqn, inner)))
        self._loops[loop] = replace(self._loops[loop], carries=tuple(carries), test=test)
        return [
            value if variable in unchanged else border.left(value)
            for variable, value in zip(variables, current, strict=True)
        ]

    def _open_cond(
        self, eqn: Any, inputs: tuple[int | Literal, ...], scope: str, parent: int | None
    ) -> list[int | Literal]:
        """Opens a conditional. Every branch becomes a loop inside of the loop of the conditional.

        A conditional with a literal selector becomes the selected branch.
        """
        selector, operands = inputs[0], inputs[1:]
        branches = eqn.params["branches"]
        if isinstance(selector, Literal):
            index = min(max(int(selector.value), 0), len(branches) - 1)
            return self._inline_closed(branches[index], operands, scope, parent)
        switch = self._new_loop(parent, LoopKind.SWITCH, len(self._loops))
        case = _Border(self, eqn.source_info, scope, switch).case(selector)
        self._loops[switch] = replace(self._loops[switch], test=case)
        inner = join_scopes(scope, str(eqn.source_info.name_stack))
        opened, yielded = [], []
        for k, branch in enumerate(branches):
            space = ("branch", selector, k)
            loop = self._new_loop(switch, LoopKind.BRANCH, space, 1 / len(branches))
            branch_space = self._loops[loop].space
            branch_operands = [
                self._joined.get(operand, {}).get(branch_space, operand)
                if isinstance(operand, int)
                else operand
                for operand in operands
            ]
            results = self._inline_closed(branch, branch_operands, inner, loop)
            yielded.append([self._made_in(loop, value, eqn, inner) for value in results])
            opened.append(loop)
        return self._join(eqn, scope, parent, opened, yielded)

    def _join(
        self,
        eqn: Any,
        scope: str,
        parent: int | None,
        branches: Sequence[int],
        yielded: Sequence[Sequence[int | Literal]],
    ) -> list[int | Literal]:
        """Returns the results of a conditional. A result that nothing reads is an empty literal.

        - `branches`: the loops of the branches.
        - `yielded[k]`: the results of the k-th branch.
        """
        switch = self._loops[branches[0]].parent
        assert switch is not None
        border = _Border(self, eqn.source_info, scope, switch)
        results: list[int | Literal] = []
        for position, (variable, values) in enumerate(
            zip(eqn.outvars, zip(*yielded, strict=True), strict=True)
        ):
            if isinstance(variable, jex.DropVar):
                results.append(Literal(None))
                continue
            joined = border.join(variable.aval, values, position)
            spaces = (self._loops[loop].space for loop in branches)
            self._joined[joined] = dict(zip(spaces, values, strict=True))
            results.append(joined)
            for loop, value in zip(branches, values, strict=True):
                carries = (*self._loops[loop].carries, Carry(joined, value))
                self._loops[loop] = replace(self._loops[loop], carries=carries)
        return results

    def _made_in(self, loop: int, value: int | Literal, eqn: Any, scope: str) -> int | Literal:
        """Returns the value that an iteration hands on, as a value of the loop. A value from
        outside of the loop is copied in each iteration."""
        if isinstance(value, Literal):
            return value
        around = self._loop_of_value[value]
        while around is not None and around != loop:
            around = self._loops[around].parent
        if around == loop:
            return value
        return self._barrier(value, eqn, scope, loop)

    def _with(
        self,
        function: Callable[..., Any],
        inputs: Sequence[int | Literal],
        eqn: Any,
        scope: str,
        loop: int | None,
    ) -> int | Literal:
        """Inlines a function of values as a part of `eqn`, and returns its only result."""
        types = [self._type(value) for value in inputs]
        traced = jax.make_jaxpr(function)(*types)
        return self._inline_closed(traced, inputs, scope, loop)[0]

    def _new_scan(self, operands: ScanOperands, parent: int | None) -> int:
        length = operands.length
        index = self._new_loop(parent, LoopKind.SCAN, length, length)
        shape = {"length": length, "reverse": operands.reverse, "unroll": operands.unroll}
        self._loops[index] = replace(self._loops[index], **shape)
        return index

    def _new_loop(self, parent: int | None, kind: LoopKind, key: Hashable, runs: float = 1) -> int:
        """Adds a loop without carries, and returns its index. Loops of the same kind and key in one
        place share an index space."""
        index = len(self._loops)
        outer = parent
        if kind is LoopKind.BRANCH:
            assert parent is not None
            outer = self._loops[parent].parent
        around = -1 if outer is None else self._loops[outer].space
        space = self._spaces.setdefault((around, kind, key), len(self._spaces))
        self._loops.append(Loop(index, parent, space, 1, False, 1, (), kind, runs))
        return index


class _Border:
    """Adds the equations at the border of one loop to the program."""

    def __init__(self, builder: LoopOpener, source_info: Any, scope: str, loop: int) -> None:
        self._builder = builder
        self._source_info = source_info
        self._scope = scope
        self._loop = builder._loops[loop]

    def carry(self, initial: int | Literal, position: int) -> int:
        """Returns a carry at the start of an iteration. The position distinguishes carries that
        start from the same value."""
        index = self._loop.index
        apart = {"apart": True} if self._loop.kind is LoopKind.WHILE else {}
        return self._emit(loops.CARRY, initial, index, loop=index, position=position, **apart)

    def result(self, following: int | Literal) -> int | Literal:
        """Returns a carry after the last iteration. A value from outside of the loop stays as it
        is."""
        if isinstance(following, Literal) or not self._builder._is_member(following, self._loop):
            return following
        return self._emit(loops.RESULT, following, self._loop.parent, loop=self._loop.index)

    def left(self, current: int | Literal) -> int | Literal:
        """Returns a carry after a `while`. It is the initial carry if there was no iteration."""
        params = {"loop": self._loop.index, "apart": True}
        return self._emit(loops.RESULT, current, self._loop.parent, **params)

    def case(self, index: int) -> int:
        """Returns the index of the branch that runs, as a value inside of the conditional."""
        return self._emit(loops.CASE, index, self._loop.index, loop=self._loop.index)

    def join(self, aval: Any, values: Sequence[int | Literal], position: int) -> int:
        """Returns the result of the branch that runs. `values`: the results of all branches."""
        assert self._loop.test is not None
        params = {"loop": self._loop.index, "position": position}
        avals = [self._builder._type(self._loop.test), *[aval] * len(values)]
        eqn = border_equation(loops.JOIN, avals, self._source_info, **params)
        inputs = (self._loop.test, *values)
        return self._builder._emit(eqn, inputs, self._scope, self._loop.parent)[0]

    def slice(self, stacked: int | Literal) -> int | Literal:
        """Returns the current iteration's element of a stack.

        If a loop of the same index space made the stack, the element is the value that was stacked.
        """
        assert isinstance(stacked, int)
        builder, index = self._builder, self._loop.index
        origin = builder._stacked.get(stacked)
        if origin is not None and origin[1] == self._loop.space:
            return origin[0]
        fetching = self._fetching(stacked)
        if fetching is None:
            return self._emit(loops.SLICE, stacked, index, space=self._loop.space)
        element, eqn = self.slice(fetching.inputs[0]), fetching.jaxpr_eqn
        traced = jax.make_jaxpr(partial(eqn.primitive.bind, **eqn.params))(builder._type(element))
        element_eqn = traced.eqns[0].replace(source_info=self._source_info)
        return builder._emit(element_eqn, (element,), self._scope, index)[0]

    def _fetching(self, stacked: int | Literal) -> Equation | None:
        """Returns the equation that fetches a stack from the host, or converts a fetched stack, if
        each iteration is to do this for its own element; None otherwise.

        The whole stack is then never in device memory. Small elements are not fetched separately.
        Nor do loops inside of loops fetch elements, since they would fetch each element in every
        outer iteration.
        """
        builder = self._builder
        if not (builder._fetches_elements and isinstance(stacked, int)):
            return None
        value, loop = builder._values[stacked], self._loop
        is_small = value.size_bytes < LARGE_BYTES * loop.length
        if is_small or loop.parent is not None or value.producer is None:
            return None
        equation = builder._equations[value.producer]
        if equation.name == "convert_element_type" and self._fetching(equation.inputs[0]):
            return equation
        return equation if equation.name == FETCH else None

    def stack(self, y: int) -> int:
        length = self._loop.length
        index = self._loop.index
        stacked = self._emit(loops.STACK, y, index, loop=index, length=length)
        self._builder._stacked[stacked] = (y, self._loop.space)
        return stacked

    def _emit(self, name: str, operand: int | Literal, owner: int | None, **params: int) -> int:
        eqn = border_equation(name, [self._builder._type(operand)], self._source_info, **params)
        return self._builder._emit(eqn, (operand,), self._scope, owner)[0]


def _unchanged_carries(body: Any, first: int, behind: int) -> frozenset[Any]:
    """Returns the variables of the carries that every iteration passes on unchanged. `first` and
    `behind` delimit the carries among the body's operands."""
    pairs = zip(body.invars[first:behind], body.outvars, strict=False)
    return frozenset(variable for variable, following in pairs if variable is following)


def _any(goes_on: Any) -> Any:
    return jnp.any(goes_on)


def _chosen(goes_on: Any, new: Any, old: Any) -> Any:
    dims = tuple(range(goes_on.ndim))
    return jax.lax.select(jax.lax.broadcast_in_dim(goes_on, new.shape, dims), new, old)
