"""Units that run just before their first reader."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random
from types import ModuleType

import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import convnet, gpt, mlp, moe
from kiwi.hlo.delayed_units import delay_to_first_reader
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.grouping import build_units
from kiwi.hlo.lowering import lower
from kiwi.hlo.units import Unit, UnitGraph
from tests.helpers.planning import array, trace_flat, units_of

X, W = array(64, 64), array(64, 64)


def held_bytes(graph: HloGraph, units: Sequence[Unit]) -> list[int]:
    """Returns the bytes of all unsharded temporaries while each of the units runs."""
    last = {value: place for place, unit in enumerate(units) for value in unit.reads}
    last.update(dict.fromkeys(graph.program.result_values, len(units)))
    made = {value: place for place, unit in enumerate(units) for value in unit.outputs}
    changes = [0] * (len(units) + 2)
    for value, start in made.items():
        changes[start] += graph.program.values[value].size_bytes
        changes[last.get(value, start) + 1] -= graph.program.values[value].size_bytes
    return list(accumulate(changes))[: len(units)]


def unit_order(units: UnitGraph) -> list[str]:
    return [units.graph.opcode_of(unit.root) for unit in units.units]


def test_what_only_reads_what_is_held_anyway_waits_for_its_reader():
    def function(x, w):
        cosines = jnp.cos(x)
        return (cosines @ (jnp.tanh(x @ w) @ w)) @ jnp.sin(cosines) @ x

    assert unit_order(units_of(function, X, W))[:3] == ["tanh", "dot_general", "cosine"]


def test_what_something_would_have_to_be_held_for_does_not_wait():
    def function(x, w):
        cosines = jnp.cos(jnp.exp(x @ w))
        return (cosines @ (jnp.tanh(x @ w) @ w)) @ jnp.sin(cosines) @ x

    order = unit_order(units_of(function, X, W))
    assert order.index("cosine") < order.index("dot_general", 1)


def test_a_unit_does_not_come_between_a_result_and_what_writes_over_it():
    def function(x, w):
        cosines = jnp.cos(x)
        hidden = jnp.exp(x @ w) @ w + x
        return (hidden * jnp.sin(hidden) * cosines) @ cosines @ x

    order = unit_order(units_of(function, X, W))
    assert order[:4] == ["exponential", "cosine", "add", "multiply"]


def test_a_unit_does_not_wait_beyond_the_update_of_what_it_reads():
    def function(w, x):
        cosines = jnp.cos(w)
        return w - 0.1, (x @ x @ x) @ cosines @ jnp.sin(cosines)

    donated = units_of(function, W, X, donated=(0,))
    argument = donated.graph.program.arguments[0]
    (update,) = (donated.producer[r] for r, a in donated.aliased_results.items() if a == argument)
    assert donated.readers[argument][-1] <= update


def test_effects_keep_their_place():
    def function(x, w):
        jax.debug.callback(lambda _: None, x)
        return x @ w @ w

    assert not units_of(function, X, W).units[0].outputs


def test_what_a_checkpoint_recomputes_for_several_gradients_is_not_held_from_the_start():
    def block(x, w):
        return jnp.tanh(jax.nn.softmax(x @ w) @ w) + jax.nn.softmax(jnp.sin(x) @ w)

    saved = jax.checkpoint_policies.dots_saveable
    checkpointed = jax.checkpoint(block, policy=saved)
    step = jax.grad(lambda w, x: jnp.square(checkpointed(checkpointed(x, w), w)).sum())
    graph = lower(trace_flat(step, W, X, keep_checkpoints=True))
    late = build_units(graph)
    traced = sorted(late.units, key=lambda unit: unit.root)
    sizes = [max(held_bytes(graph, order)) for order in (traced, late.units)]
    assert sizes[1] < sizes[0]


@functools.cache
def step_units(module: ModuleType, remat: str | None) -> UnitGraph:
    """Returns the units of an example's donating step with the recomputation that the step itself
    asks for."""
    config = module.SIZES["tiny"]
    leaves, tree = jax.tree.flatten((module.abstract_state(config), module.abstract_batch(config)))
    step = module.make_train_step(config, remat=remat)
    program = trace_flat(
        lambda *flat: step(*jax.tree.unflatten(tree, flat)), *leaves, keep_checkpoints=True
    )
    return build_units(lower(program), frozenset(program.arguments))


def shuffled(units: UnitGraph, random: Random) -> list[Unit]:
    """Returns the units in another order that can run."""
    replaced = {a: units.producer[r] for r, a in units.aliased_results.items()}
    waits: dict[int, set[int]] = {}
    for unit in units.units:
        waits.setdefault(unit.index, set()).update(
            units.producer[value] for value in unit.reads if value in units.producer
        )
        for value in unit.reads:
            if value in replaced and replaced[value] != unit.index:
                waits.setdefault(replaced[value], set()).add(unit.index)
    order: list[Unit] = []
    left = set(waits)
    while left:
        ready = sorted(k for k in left if waits[k].isdisjoint(left))
        chosen = random.choice(ready)
        left.remove(chosen)
        order.append(units.units[chosen])
    return order


@settings(max_examples=20, deadline=None)
@given(
    module=st.sampled_from([gpt, moe, mlp, convnet]),
    remat=st.sampled_from([None, "dots", "full"]),
    random=st.randoms(use_true_random=False),
)
def test_no_order_takes_more_memory_than_before(module, remat: str | None, random: Random):
    units = step_units(module, remat)
    given_order = shuffled(units, random)
    numbered = tuple(replace(unit, index=index) for index, unit in enumerate(given_order))
    late = delay_to_first_reader(replace(units, units=numbered))
    assert sorted(unit.root for unit in late) == sorted(unit.root for unit in given_order)
    before, after = (max(held_bytes(units.graph, order)) for order in (given_order, late))
    assert after <= before
    available = {*units.graph.program.arguments, *units.graph.program.constants}
    for unit in late:
        assert available.issuperset(unit.reads)
        available.update(unit.outputs)
        available.difference_update(units.aliased_results.get(o, -1) for o in unit.outputs)
