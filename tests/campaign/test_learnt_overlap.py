"""Programs that overlap less than planned: the corrections, and the plan that follows."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.campaign import shares
from kiwi.campaign.learnt_overlap import LessOverlap, reached_overlap
from kiwi.campaign.overlap_search import OverlapSearch
from kiwi.campaign.proposer import Proposal
from kiwi.corrections import NO_CORRECTIONS, Correction, Corrections
from kiwi.plans.plan import Plan
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.simulated import AxisSeconds
from tests.helpers.begins import begins
from tests.helpers.on_cpu import ON_CPU


@pytest.fixture(scope="module")
def base() -> Plan:
    plan = kiwi.plan(
        lambda w, x: jnp.tanh(x @ w),
        *[jax.ShapeDtypeStruct((256, 256), "float32")] * 2,
        mesh_shape=(8,),
        profile=ON_CPU,
        verify="cpu",
    )
    estimate = replace(
        plan.estimate,
        step_seconds=10.0,
        communication_seconds=5.0,
        resharding_seconds=0.0,
        hidden_seconds=4.0,
    )
    return replace(plan, estimate=estimate)


def with_program(plan: Plan, step_seconds: float, waits_seconds: float) -> Plan:
    """Returns the plan with a program of this step time, which waits this long for 5 s of
    communication."""
    assert plan.compiled is not None and plan.compiled.time is not None
    rows = (AxisSeconds(("d",), 5.0, waits_seconds),)
    time = replace(plan.compiled.time, step_seconds=step_seconds, communication=rows)
    return replace(plan, compiled=replace(plan.compiled, time=time))


def test_a_part_of_what_is_not_hidden_is_learnt(base: Plan):
    """It waits for 3 s instead of 1 s: half of the 4 s that the plan hides."""
    late = with_program(base, 12.0, 3.0)
    assert reached_overlap(late, 1.0) == 1 - shares.LEARNT_OVERLAP / 2
    assert reached_overlap(late, 0.8) == pytest.approx(0.8 * (1 - shares.LEARNT_OVERLAP / 2))


@pytest.mark.parametrize(
    "step_seconds, waits_seconds",
    [(10.5, 1.5), (14.0, 1.0)],
    ids=["as planned", "late for another reason"],
)
def test_nothing_is_learnt_otherwise(base: Plan, step_seconds: float, waits_seconds: float):
    assert reached_overlap(with_program(base, step_seconds, waits_seconds), 1.0) is None


def test_copies_to_the_host_do_not_count(base: Plan):
    estimate = replace(base.estimate, hidden_offload_seconds=4.0)
    late = with_program(replace(base, estimate=estimate), 12.0, 3.0)
    assert reached_overlap(late, 1.0) is None


def test_a_search_that_may_learn_ends_with_its_first_late_program(base: Plan):
    late = with_program(base, 12.0, 3.0)
    assert late.compiled is not None
    budget = 2 * late.compiled.peak_bytes
    for peak_bytes, seconds in ((budget, 12.0), (budget + 1, float("inf"))):
        program = replace(late.compiled, peak_bytes=peak_bytes)

        def compiled(_: object, program: CompiledProgram = program) -> CompiledProgram:
            return program

        search: OverlapSearch[Proposal] = OverlapSearch(
            budget, [begins(compiled)], known_overlap=1.0
        )
        with pytest.raises(LessOverlap) as caught:
            search.run(Proposal(base, budget), lambda limit, most: None)
        assert caught.value.seconds == seconds and caught.value.overlap < 1


def test_less_overlap_hides_less():
    """The same decisions are priced with the part of the overlap that is reached."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return x.sum()

    rows, weights = 8 * 2048, 2048
    plans = [
        kiwi.plan(
            jax.value_and_grad(loss),
            jax.ShapeDtypeStruct((weights, weights), "bfloat16"),
            jax.ShapeDtypeStruct((rows, weights), "bfloat16"),
            mesh_shape=(8,),
            profile="v5e",
            verify=None,
            in_shardings=(P("x"), P("x")),
            corrections=Corrections(overlap=overlap),
        )
        for overlap in (1.0, 0.5, 0.0)
    ]
    hidden = [plan.estimate.hidden_seconds for plan in plans]
    assert hidden[0] > hidden[1] > hidden[2] == 0


def test_overlap_is_a_correction_that_others_keep():
    assert Corrections() == NO_CORRECTIONS and not Corrections()
    less = Corrections(overlap=0.5)
    assert less and less.and_also([Correction("k", "dot", factor=2.0)]).overlap == 0.5
