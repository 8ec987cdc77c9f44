"""Collectives and memory as read from compiled programs."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from kiwi.mesh import DeviceMesh
from kiwi.xla.read.buffer_assignment import BufferSizes, read_sizes
from kiwi.xla.read.collectives import AxisUse
from kiwi.xla.read.compiled_program import _REMATERIALIZED, read_compiled


def test_a_compiled_program_is_read(make_mesh):
    mesh = make_mesh(8)
    rows = NamedSharding(mesh, PartitionSpec("x"))
    whole = NamedSharding(mesh, PartitionSpec())

    def total(x):
        return jnp.sum(x, axis=0)

    shape = jax.ShapeDtypeStruct((64, 32), "float32")
    compiled = jax.jit(total, in_shardings=rows, out_shardings=whole).lower(shape).compile()
    program = read_compiled(compiled, DeviceMesh.create((8,), "cpu"), "cpu", 1.5)
    assert (program.target, program.compile_seconds) == ("cpu", 1.5)
    assert program.argument_bytes == 64 // 8 * 32 * 4 and program.output_bytes == 32 * 4
    assert program.collective_uses == (AxisUse("all-reduce", ("x",), 1, 32 * 4),)
    assert program.collective_bytes == 32 * 4
    held = program.argument_bytes + program.output_bytes + program.temporary_bytes
    assert program.peak_bytes == held - program.alias_bytes


def test_a_donated_argument_is_counted_once():
    shape, one = jax.ShapeDtypeStruct((64, 32), "float32"), DeviceMesh.create((1,), "cpu")
    plain = jax.jit(lambda x: x + 1).lower(shape).compile()
    donated = jax.jit(lambda x: x + 1, donate_argnums=0).lower(shape).compile()
    before, after = (read_compiled(c, one, "cpu", 0.0).peak_bytes for c in (plain, donated))
    assert before - after == 64 * 32 * 4


def test_sizes_are_those_of_the_buffer_assignment():
    """As they are read where there is no compiled program, but what XLA wrote of it."""

    def step(x, y):
        return x + 1, jnp.tanh(x @ y) @ y

    shapes = jax.ShapeDtypeStruct((64, 32), "float32"), jax.ShapeDtypeStruct((32, 32), "float32")
    compiled = jax.jit(step, donate_argnums=0).lower(*shapes).compile()
    stats = compiled.memory_analysis()
    sizes = read_sizes(stats.serialized_buffer_assignment_proto)
    assert sizes == BufferSizes(
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.alias_size_in_bytes,
    )
    assert min(vars(sizes).values()) > 0


def test_names_tell_what_the_compiler_recomputes_itself():
    lines = ("%dot.3.remat = f32[2]{0} dot(", "ROOT %a.remat2.1 = f32[] add(", "%b = f32[] add(")
    assert len(_REMATERIALIZED.findall("\n".join(f"  {line}" for line in lines))) == 2
