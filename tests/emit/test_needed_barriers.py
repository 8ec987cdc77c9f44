"""The values that every plan's program reads behind barriers, whatever order XLA chooses."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from examples import gpt
from kiwi.emit.barriers import MOST_LATE, Barrier, barriers
from kiwi.emit.execution import build_execution
from kiwi.emit.interpreter import emit
from kiwi.emit.needed_barriers import large_constants
from kiwi.hlo.graph import Phase
from kiwi.hlo.large_operators import large_units, reduces_late
from kiwi.mesh import hardware
from kiwi.problem.solved import Solved
from kiwi.solver.schedule import Schedule
from kiwi.targets.tpu import TPU
from kiwi.xla.compilers import compile_for
from kiwi.xla.cpu.compiler import CPU_COMPILER_OPTIONS
from tests.helpers.planning import array, flat, problem_of, random_arrays, units_of
from tests.xla.tpu.test_buffers import needs_compiler


def loss(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return x.sum()


ARGS = array(16, 16), array(8, 16)


def execution_of(function, args, mesh_shape=(1, 1)):
    """Returns an execution without recomputation, with the needed barriers."""
    planning = problem_of(units_of(function, *args), mesh_shape)
    execution = build_execution(Solved(planning, [0] * len(planning.problem.nodes)))
    return replace(execution, tied_steps=frozenset())


def recomputed(execution, before, *units):
    """Returns the execution in which these units run again before the unit `before`."""
    steps = list(execution.schedule.steps)
    place = steps.index(before)
    return replace(execution, schedule=Schedule((*steps[:place], *units, *steps[place:])))


@pytest.fixture(scope="module")
def kept():
    return execution_of(jax.value_and_grad(loss), ARGS)


@pytest.fixture(scope="module")
def again(kept):
    """The first three layers run again before the last unit that reads the third one. That unit and
    all later ones read the recomputed layers."""
    (third,) = kept.units.units[2].outputs
    return recomputed(kept, kept.units.readers[third][-1], 0, 1, 2)


def compiled(execution):
    jitted = jax.jit(emit(execution), compiler_options=CPU_COMPILER_OPTIONS)
    return jitted.lower(*ARGS).compile()


def test_what_is_computed_once_needs_no_barrier(kept):
    assert not any(barriers(kept).steps)


def test_a_recomputed_group_reads_behind_one_barrier_with_what_its_reader_waits_for(again):
    found = barriers(again).steps
    (first,) = (k for k, barrier in enumerate(found) if barrier)
    steps = again.schedule.steps
    assert steps[first : first + 3] == (0, 1, 2) and found[first].is_of_group
    assert set(again.units.graph.program.arguments) <= set(found[first].values)
    (trigger,) = found[first].triggers
    units = again.units.units
    results = {output for u in (0, 1, 2) for output in units[u].outputs}
    last_read = max(k for k in range(first) if results & set(units[steps[k]].reads))
    assert last_read <= steps.index(again.units.producer[trigger]) < first


def test_the_group_is_neither_merged_with_the_first_computation_nor_early(kept, again):
    once, twice = compiled(kept), compiled(again)
    assert twice.as_text().count(" dot(") == once.as_text().count(" dot(") + 3
    concrete = random_arrays(ARGS)
    wanted = flat(jax.value_and_grad(loss))(*concrete)
    for got, expected in zip(twice(*concrete), wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_without_the_group_s_barrier_the_computations_are_merged(kept, again, monkeypatch):
    """So the barrier is needed."""
    found = barriers(again)
    without = replace(found, steps=tuple(Barrier() for _ in found.steps))
    monkeypatch.setattr("kiwi.emit.context.barriers", lambda execution: without)
    bare = compiled(again)
    monkeypatch.undo()
    assert bare.as_text().count(" dot(") == compiled(kept).as_text().count(" dot(")


def test_readers_of_what_is_recomputed_read_its_operands_behind_the_barrier():
    """XLA fuses gradients with sums that are recomputed of the same rows."""

    def centred(w, x):
        rows = x @ w
        return jnp.sum((rows - jnp.mean(rows, -1, keepdims=True)) ** 3)

    kept = execution_of(jax.grad(centred), ARGS)
    units, program = kept.units, kept.units.graph.program
    mean = units.units[1]
    assert program.equations[mean.root].name == "reduce_sum"
    readers = units.readers[mean.outputs[0]]
    first = min(r for r in readers if units.units[r].phase is Phase.BACKWARD)
    traced = jax.make_jaxpr(emit(recomputed(kept, first, mean.index)))(*ARGS)
    equations = traced.eqns
    (place,) = (k for k, e in enumerate(equations) if e.primitive.name == "optimization_barrier")
    later = {id(v) for e in equations[place + 1 :] for v in e.invars}
    rows = [v for v in equations[place].invars if v.aval.shape == (8, 16)]
    assert rows and not any(id(v) in later for v in rows)


def test_a_group_waits_for_no_reversed_kernel():
    """The gradient of a convolution reads its kernel reversed, which is there from the start."""

    def convolved(kernels, x):
        for kernel in kernels:
            x = jax.lax.conv_general_dilated(jax.nn.silu(x), kernel, (1, 1), "SAME")
        return (x * x).sum()

    args = [array(8, 8, 3, 3)] * 3, array(4, 8, 16, 16)
    plan = kiwi.plan(jax.grad(convolved), *args, mesh_shape=(1,), profile="v5e", verify=None)
    kept = replace(plan.execution, tied_steps=frozenset())
    units, program = kept.units, kept.units.graph.program
    reversed_units = {u.index for u in units.units if program.equations[u.root].name == "rev"}
    pairs = [
        (unit.index, reader)
        for unit in units.units
        for reader in units.readers.get(unit.outputs[0], ())
        if unit.phase is Phase.FORWARD
        and reversed_units & {units.producer.get(value) for value in units.units[reader].reads}
    ]
    assert pairs
    for unit, reader in pairs:
        (barrier,) = filter(None, barriers(recomputed(kept, reader, unit)).steps)
        assert reversed_units.isdisjoint(units.producer[trigger] for trigger in barrier.triggers)


def test_a_group_waits_for_a_map_that_is_fused_with_the_matmul_its_reader_waits_for():
    """A barrier on the matmul's own result would part it from the map, on TPUs."""

    def gated(w, x):
        opened = jnp.tanh(x @ w)
        product = (opened @ w) @ w
        scaled = jnp.tanh(product)
        return scaled, scaled @ w, (opened * product) @ w

    def waited_for(profile):
        plan = kiwi.plan(gated, *ARGS, mesh_shape=(1,), profile=profile, verify=None)
        kept = replace(plan.execution, tied_steps=frozenset())
        units = kept.units
        opened = units.units[0].outputs[0]
        twice = recomputed(kept, units.readers[opened][-1], 0)
        ((trigger,),) = (barrier.triggers for barrier in barriers(twice).steps if barrier)
        root = units.units[units.producer[trigger]].root
        return units.graph.program.equations[root].name

    assert waited_for("v5e") == "tanh"
    assert waited_for("h100-sxm") == "dot_general"


def test_two_groups_have_barriers_of_their_own(kept, again):
    last = again.units.readers[again.units.units[0].outputs[0]][-1]
    twice = recomputed(again, last, 0)
    found = [barrier for barrier in barriers(twice).steps if barrier]
    assert len(found) == 2 and found[0].triggers != found[1].triggers
    dots = compiled(twice).as_text().count(" dot(")
    assert dots == compiled(again).as_text().count(" dot(") + 1


def test_tied_steps_have_their_barrier_beside(kept, again):
    every = barriers(replace(again, tied_steps=None)).steps
    some = frozenset(range(0, len(every), 2))
    found = barriers(replace(kept, tied_steps=some)).steps
    whole = barriers(replace(kept, tied_steps=None)).steps
    assert found == tuple(b if k in some else type(b)() for k, b in enumerate(whole))
    assert sum(map(bool, every)) > sum(map(bool, barriers(again).steps))


def test_a_large_constant_is_expanded_behind_a_barrier():
    """The zeros that an embedding's gradient is added to."""

    def of_embedding(table, tokens, w):
        return jnp.tanh(jnp.tanh(table[tokens] @ w) @ w).sum()

    args = array(2**14, 64), jax.ShapeDtypeStruct((32,), "int32"), array(64, 64)
    execution = execution_of(jax.grad(of_embedding), args)
    tied = [k for k, barrier in enumerate(barriers(execution).steps) if barrier]
    opcodes = [execution.units.graph.opcode_of(u.root) for u in execution.units.units]
    assert [opcodes[execution.schedule.steps[k]] for k in tied] == ["scatter"]
    on_a_tpu = replace(execution, kernels=TPU.kernels(execution.units, hardware("v5e")))
    assert not any(barriers(on_a_tpu).steps), "XLA:TPU computes constants where they are read"


def test_a_constant_that_a_reduction_reads_needs_no_barrier():
    """XLA computes it in the reduction, as in maps."""

    def masked(x):
        return jnp.where(x > 0, x, jnp.zeros((2**14, 64))).sum(0)

    execution = execution_of(masked, (array(2**14, 64),))
    (unit,) = (u for u in execution.units.units if large_constants(execution.units, u))
    assert execution.units.graph.opcode_of(unit.root) == "reduce"
    assert not any(barriers(execution).steps)


@needs_compiler
@pytest.mark.parametrize("devices", [1, 4])
def test_logits_are_not_held_for_a_late_summand_on_tpus(devices, monkeypatch):
    """A tied embedding's gradients are added at the end of the step; on one chip the late one is
    scattered into the early one."""
    config = gpt.GptConfig(3, 512, 8, batch=32, sequence=512, vocabulary=4096)
    arguments = gpt.abstract_state(config), gpt.abstract_batch(config)
    options = {"mesh_shape": (devices, 1), "profile": "v5e", "donate_argnums": 0}
    options |= {"verify": None, "memory_budget": "1240MiB" if devices == 1 else "318MiB"}
    plan = kiwi.plan(gpt.make_train_step(config), *arguments, **options)
    own = replace(plan.execution, tied_steps=frozenset())
    units, steps = own.units, own.schedule.steps
    alone = [b for b in barriers(own).steps if b.values and not b.triggers and not b.is_of_group]
    assert len(alone) == (devices > 1)
    for barrier in alone:
        (value,) = barrier.values
        assert units.graph.program.values[value].shape == (4096, 512)
        assert steps.index(units.readers[value][0]) - steps.index(units.producer[value]) > 8
        held = compile_for("tpu", replace(plan, execution=own).step).peak_bytes
        monkeypatch.setattr("kiwi.emit.barriers.early_summands", lambda *_: set())
        barriers.cache_clear()
        assert held < 0.9 * compile_for("tpu", replace(plan, execution=own).step).peak_bytes
        barriers.cache_clear()


def test_a_matmul_of_the_backward_pass_waits_for_the_gradient_in_front_of_the_third_before():
    def deep(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return x.sum()

    kept = execution_of(jax.grad(deep), ([array(16, 16)] * 8, array(8, 16)))
    assert not any(barriers(kept).steps)
    units = kept.units
    found = barriers(replace(kept, gradients_in_time=True)).steps
    large = [u for u in units.units if large_units(units)[u.index] and u.phase == Phase.BACKWARD]
    steps = [kept.schedule.steps.index(u.index) for u in large if not reduces_late(units, u)]
    assert [k for k, barrier in enumerate(found) if barrier] == steps[MOST_LATE:]
    for now, before in zip(steps[MOST_LATE:], steps, strict=False):
        (trigger,) = found[now].triggers
        gradient = units.units[units.producer[trigger]]
        assert gradient.index == kept.schedule.steps[before - 1]
        assert reduces_late(units, gradient)


def test_sums_of_columns_are_waited_for_as_well():
    """They hold what they read as gradients of matrices do; each is waited for once."""

    def deep(layers, x):
        for w, b in layers:
            x = jnp.tanh(x @ w + b)
        return x.sum()

    kept = execution_of(jax.grad(deep), ([(array(16, 16), array(16))] * 8, array(8, 16)))
    units, steps = kept.units, kept.schedule.steps
    found = barriers(replace(kept, gradients_in_time=True)).steps
    waited = [units.producer[value] for barrier in found for value in barrier.triggers]
    assert len(waited) == len(set(waited))
    (last, *_) = (k for k in reversed(range(len(found))) if found[k])
    until = [k for k, each in enumerate(steps) if units.units[each].phase == Phase.BACKWARD]
    names = {k: units.graph.program.equations[units.units[k].root].name for k in waited}
    assert {"dot_general", "reduce_sum"} == set(names.values())
    sums = [k for k in waited if names[k] == "reduce_sum"]
    assert len(sums) == len(waited) // 2 and until[0] < steps.index(waited[-1]) < last


def test_metrics_of_the_forward_pass_do_not_come_late():
    """XLA would hold the logits until it picks those of the labels."""

    def loss(weights, x, labels):
        for weight in weights:
            x = logits = jnp.tanh(x @ weight)
        return jnp.sum(logits**2), jnp.take_along_axis(logits, labels, 1).mean()

    arguments = [array(64, 64)] * 6, array(512, 64), jax.ShapeDtypeStruct((512, 1), "int32")
    kept = execution_of(jax.grad(loss, has_aux=True), arguments)
    units, steps = kept.units, kept.schedule.steps
    found = barriers(replace(kept, metrics_in_time=True)).steps
    (waiting,) = (k for k, barrier in enumerate(found) if barrier)
    assert units.units[steps[waiting]].phase is Phase.BACKWARD
    (metric,) = found[waiting].triggers
    assert units.graph.program.values[metric].size_bytes <= 512 * 4
    assert not any(barriers(kept).steps)
