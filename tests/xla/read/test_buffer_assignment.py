"""Memory of small compiled programs, from XLA's buffer assignment."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from kiwi.mesh import DeviceMesh
from kiwi.xla.cpu.compiler import CPU_COMPILER_OPTIONS
from kiwi.xla.read.buffer_assignment import traced_lives
from kiwi.xla.read.compiled_program import read_compiled
from kiwi.xla.read.name_scopes import Scope, scope_name, scope_of

KIB = 1024
SIDE = jax.ShapeDtypeStruct((64, 64), "float32")  # 16 KiB


def memory_of(function, *args, **options):
    compiled = jax.jit(function, compiler_options=CPU_COMPILER_OPTIONS, **options)
    one = DeviceMesh.create((1,), "cpu")
    program = read_compiled(compiled.lower(*args).compile(), one, "cpu", 0.0)
    assert program.memory is not None
    return program, program.memory


def test_alive_buffers_and_waste_add_up_to_the_peak():
    program, memory = memory_of(lambda x: jnp.sin(x @ x) @ jnp.cos(x @ x + x), SIDE)
    held = sum(b.bytes for b in memory.at_peak)
    assert held == max(memory.curve_bytes)
    assert held + memory.fragmentation_bytes == program.peak_bytes


def test_arguments_and_results_are_held_throughout():
    _, memory = memory_of(lambda x, y: (x @ y, y @ x), SIDE, SIDE)
    assert min(memory.curve_bytes) >= 4 * 16 * KIB
    kinds = sorted(b.kind for b in memory.at_peak if b.bytes == 16 * KIB)
    assert kinds == ["argument", "argument", "output", "output"]


def test_a_buffer_lives_through_tuples_and_barriers():
    """`early` goes into a barrier at the start and is read behind it, at the end."""

    def function(x):
        early = x @ x
        late = jnp.sin(early) @ x
        for _ in range(4):
            late = late @ x
        fenced, late = jax.lax.optimization_barrier((early, late))
        return fenced @ late

    _, memory = memory_of(function, SIDE)
    dots = [b for b in memory.at_peak if b.kind == "temporary" and b.bytes == 16 * KIB]
    assert len(dots) >= 2  # `early` and the running product
    assert min(b.start for b in dots) == min(
        p for p, held in enumerate(memory.curve_bytes) if held > memory.curve_bytes[0]
    )


def test_a_result_in_place_of_a_donated_argument_counts_once():
    plain, _ = memory_of(lambda x: x + 1, SIDE)
    donated, memory = memory_of(lambda x: x + 1, SIDE, donate_argnums=0)
    assert plain.peak_bytes - donated.peak_bytes == 16 * KIB
    assert sum(b.bytes for b in memory.at_peak) == 16 * KIB


def test_instructions_know_the_unit_that_they_belong_to():
    def function(x):
        with jax.named_scope(scope_name(3)):
            y = x @ x
        with jax.named_scope(scope_name(7, again=True)):
            return jnp.sin(y) @ x

    _, memory = memory_of(function, SIDE)
    assert {3, 7} <= set(memory.units)


def test_what_a_loop_carries_is_named_by_what_its_body_makes():
    def function(x):
        def body(carry, index):
            buffer, y = carry
            with jax.named_scope(scope_name(5)):
                buffer = jax.lax.dynamic_update_index_in_dim(buffer, y, index, 0)
            return (buffer, jnp.sin(y @ x)), None

        return jax.lax.scan(body, (jnp.zeros((4, *x.shape)), x), jnp.arange(4))[0]

    _, memory = memory_of(function, SIDE)
    (stack,) = (b for b in memory.at_peak if b.bytes == 4 * 16 * KIB)
    assert stack.scope == Scope(5, False, False)


@pytest.mark.parametrize(
    ("op_name", "scope"),
    [
        ("jit(step)/kiwi_12/jvp()/dot_general", Scope(12, False, False)),
        ("jit(step)/kiwi_12_again/sin", Scope(12, True, False)),
        ("jit(step)/kiwi_4/reshard/sharding_constraint", Scope(4, False, True)),
        ("jit(step)/kiwi_4_again/reshard/x", Scope(4, True, True)),
        ("jit(step)/dot_general", None),
    ],
)
def test_scopes_are_read_from_metadata(op_name, scope):
    assert scope_of(op_name) == scope


def event(kind: int, buffer: int, instruction: str) -> SimpleNamespace:
    return SimpleNamespace(kind=kind, buffer_id=buffer, instruction_name=instruction)


def test_lives_follow_the_heap_simulators_trace():
    """a is read by c, whose result takes over b's place; d is never freed."""
    position = {"a": 0, "b": 1, "c": 4, "d": 6}
    events = [
        event(0, 10, "a"),
        event(0, 11, "b"),
        event(2, 12, "c"),
        event(1, 11, "b"),
        event(1, 10, "a"),
        event(0, 13, "d"),
        event(1, 12, "c"),
    ]
    assignment = SimpleNamespace(heap_simulator_traces=[SimpleNamespace(events=events)])
    assert traced_lives(assignment, position) == {
        10: (0, 6),
        11: (1, 6),
        12: (4, 7),
        13: (6, 7),
    }
