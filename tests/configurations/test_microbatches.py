"""Plans of microbatches predict the collectives that XLA compiles."""

import pytest
from jax.sharding import PartitionSpec

import kiwi
from tests.configurations.steps import make_step
from tests.helpers.on_cpu import ON_CPU


def plan_of(microbatches, share=None):
    """Returns a plan with sharded parameters. `share`: the budget as a share of the free peak."""
    step, args = make_step(512, microbatches)
    params = [PartitionSpec("x")] * 2
    planned = kiwi.jit(
        step,
        mesh_shape=(4,),
        profile=ON_CPU,
        verify="cpu",
        effort="quick",
        donate_argnums=0,
        in_shardings=(params, PartitionSpec(None, "x")),
        out_shardings=params,
    )
    if share is not None:
        budget = int(share * planned.plan(*args).peak_bytes)
        planned = planned.with_options(memory_budget=budget)
    return planned.plan(*args)


@pytest.mark.parametrize("microbatches, share", [(1, None), (2, None), (4, None), (4, 0.8)])
def test_predicted_collectives_are_compiled(microbatches, share):
    plan = plan_of(microbatches, share)
    assert plan.estimate.collective_uses
    assert plan.compiled.collective_uses == plan.estimate.collective_uses
    assert plan.unforeseen_collectives == ()
