"""The private names of jax exist, do what Kiwi needs, and are named in one module only."""

import ast
import importlib
import threading
from pathlib import Path

import jax
import pytest
from jax._src import source_info_util

import kiwi
from kiwi.hlo import jax_internals

PACKAGE = Path(kiwi.__file__).parent

PRIVATE_NAMES = (
    "jax._src.ad_checkpoint.remat_p",
    "jax._src.callback.emit_python_callback",
    "jax._src.core.NamedAxisEffect",
    "jax._src.compiler.get_compile_options",
    "jax._src.config.string_or_object_state",
    "jax._src.config.traceback_filtering",
    "jax._src.core.JaxprEqnContext",
    "jax._src.core.ShapedArray",
    "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version",
    "jax._src.custom_partitioning_sharding_rule.sdy_sharding_rule_to_mlir",
    "jax._src.custom_partitioning_sharding_rule.str_to_sdy_sharding_rule",
    "jax._src.dispatch.prim_requires_devices_during_lowering",
    "jax._src.lax.windowed_reductions._select_and_scatter",
    "jax._src.literals.TypedNdArray",
    "jax._src.mesh.empty_concrete_mesh",
    "jax._src.mesh.get_concrete_mesh",
    "jax._src.mesh.thread_resources",
    "jax._src.shard_map.shard_map_p",
    "jax._src.source_info_util.summarize",
    "jaxlib.mlir.ir.Module",
    "jaxlib.mlir.dialects.sdy.OpShardingRuleAttr",
    "jaxlib.mlir.dialects.sdy.TensorShardingAttr",
    "jaxlib.mlir.dialects.sdy.TensorShardingPerValueAttr",
    "jaxlib.mlir.dialects.stablehlo.ConvDimensionNumbers",
    "jaxlib.mlir.passmanager.PassManager",
    "jaxlib.xla_client.Shape.array_shape",
)
"""The private names that `jax_internals` uses, as dotted paths."""

EXTENSION_NAMES = (
    "jax.custom_derivatives.SymbolicZero",
    "jax.extend.core.ClosedJaxpr",
    "jax.extend.core.DebugInfo",
    "jax.extend.core.DropVar",
    "jax.extend.core.Jaxpr",
    "jax.extend.core.Literal",
    "jax.extend.core.Primitive",
    "jax.extend.core.Var",
    "jax.extend.core.jaxpr_as_fun",
    "jax.extend.core.jaxprs_in_params",
    "jax.extend.core.primitives",
    "jax.extend.source_info_util.register_exclusion",
    "jax.interpreters.ad.primitive_jvps",
    "jax.interpreters.batching.primitive_batchers",
    "jax.interpreters.mlir.dtype_to_ir_type",
    "jax.interpreters.mlir.lower_fun",
    "jax.interpreters.mlir.make_ir_context",
    "jax.interpreters.mlir.register_lowering",
)
"""The names that the whole package uses from jax's modules for extensions. They are public, but jax
does not promise to keep them."""


def resolve(dotted: str) -> object:
    """Returns the object of a dotted path. The longest importable prefix is its module."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


EXTENSION_MODULES = ("jax.extend", "jax.interpreters", "jax.custom_derivatives")


def extension_uses(path: Path) -> set[str]:
    """Returns the dotted paths under `EXTENSION_MODULES` that a file uses, through any alias."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    aliases = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if f"{node.module}.".startswith(tuple(f"{m}." for m in EXTENSION_MODULES))
    }
    reached = {
        f"{aliases[node.value.id]}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in aliases
    }
    objects = {a for a in aliases.values() if not any(r.startswith(f"{a}.") for r in reached)}
    return reached | objects


def is_private(module: str) -> bool:
    return module.split(".")[0] == "jaxlib" or module.startswith("jax._src")


@pytest.mark.parametrize("name", PRIVATE_NAMES + EXTENSION_NAMES)
def test_private_name_exists(name: str):
    assert resolve(name) is not None


def test_every_private_import_is_listed():
    imported = imported_modules(PACKAGE / "hlo" / "jax_internals.py")
    private = {m for m in imported if is_private(m)}
    unlisted = {m for m in private if not any(n.startswith(m) for n in PRIVATE_NAMES)}
    assert private and not unlisted


def test_no_other_module_imports_private_names():
    offenders = {
        str(path.relative_to(PACKAGE)): private
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "jax_internals.py"
        and (private := {m for m in imported_modules(path) if is_private(m)})
    }
    assert offenders == {}


def test_uses_of_modules_for_extensions_are_listed():
    used = set[str]().union(*(extension_uses(path) for path in PACKAGE.rglob("*.py")))
    assert sorted(used) == list(EXTENSION_NAMES)


def test_source_line_names_the_users_code():
    (eqn,) = jax.make_jaxpr(lambda x: jax.numpy.sin(x))(1.0).eqns
    assert jax_internals.source_line(eqn.source_info).startswith(__file__)
    assert jax_internals.source_line(source_info_util.new_source_info()) == ""


def test_a_gpu_is_assumed_where_jax_asks_for_one_that_is_not_there(monkeypatch):
    """jax 0.10 does not ask."""
    gpu_info = pytest.importorskip("jax._src.pallas.triton.gpu_info")
    asked = gpu_info.get_gpu_info
    with pytest.raises(ValueError, match="Unsupported GPU"):
        asked()
    with jax_internals.assumed_gpu():
        assert gpu_info.get_gpu_info().compute_capability == 90
    assert gpu_info.get_gpu_info is asked
    monkeypatch.setattr(gpu_info, "get_gpu_info", lambda: "attached")
    with jax_internals.assumed_gpu():
        assert gpu_info.get_gpu_info() == "attached"


def test_rule_of_a_matmul_is_read_as_factors():
    shapes = jax.ShapeDtypeStruct((2, 3), "float32"), jax.ShapeDtypeStruct((3, 5), "float32")
    module = jax.jit(lambda x, y: x @ y).lower(*shapes).compiler_ir("stablehlo")
    jax_internals.populate_sharding_rules(module)
    main = jax_internals.functions(module)["main"]
    found = [jax_internals.sharding_rule(op) for op in jax_internals.block_operations(main)]
    (rule,) = [each for each in found if each is not None]
    ((i,), (k,)), ((k_too,), (j,)) = rule.operands
    assert k == k_too and rule.results == (((i,), (j,)),)
    assert [rule.factor_sizes[f] for f in (i, k, j)] == [2, 3, 5]
    assert rule.reduction == {k} and not rule.blocked


def test_tokens_have_no_shape():
    def effectful(x):
        jax.debug.callback(lambda _: None, x, ordered=True)
        return x

    lowered = jax.jit(effectful).lower(jax.ShapeDtypeStruct((2,), "float32"))
    main = jax_internals.functions(lowered.compiler_ir("stablehlo"))["main"]
    shapes = [jax_internals.tensor_shape_and_dtype(a) for a in jax_internals.block_arguments(main)]
    assert shapes.count(None) == 1 and ((2,), "f32") in shapes


def test_two_threads_that_leave_out_callbacks_restore_jax():
    """Programs of one plan are exported by several threads."""
    original = jax_internals.python_callbacks.emit_python_callback
    is_inside, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with jax_internals.callbacks_without_results_left_out():
            is_inside.set()
            may_leave.wait()

    thread = threading.Thread(target=other)
    with jax_internals.callbacks_without_results_left_out():
        thread.start()
        # Without a lock the other thread is inside at once, and leaves last.
        is_inside.wait(timeout=0.2)
    may_leave.set()
    thread.join()
    assert jax_internals.python_callbacks.emit_python_callback is original
