"""Steps of full-size models in trainers of Tunix and Levanter: as the framework lays them out, and
under Kiwi's plan.

    python -m benchmarks.recipes.trainers tunix v5e [row …]      # with the package google-tunix
    python -m benchmarks.recipes.trainers levanter v5e [row …]   # with the package marin-levanter

The profile is v5e (2x4 chips, checked with XLA:TPU) or h100-sxm (eight devices, not checked). Rows
of other calls stay in `trainers.json`.
"""

import dataclasses
import datetime
import json
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import kiwi
from benchmarks.provenance import commit
from benchmarks.recipes.__main__ import cpu_seconds
from kiwi.errors import KiwiError
from kiwi.loading import use_cpu_devices
from kiwi.recipes import price

RESULTS = Path(__file__).parent / "trainers.json"
TARGETS: dict[str, dict[str, Any]] = {
    "v5e": {"topology": "2x4", "verify": "tpu"},
    "h100-sxm": {"topology": None, "verify": None},
}
"""The profile's topology, and who checks plans for it."""

BATCH, LENGTH = 16, 1024


def tunix(profile: str, topology: str | None, is_recomputed: bool) -> Any:
    """Returns Qwen3-0.6B in bfloat16 with AdamW in `PeftTrainer`, on four parts of the data and two
    of each matrix. `is_recomputed`: whether the layers are."""
    from kiwi.frameworks.tunix import Tunix, described, install_stand_ins

    install_stand_ins()
    import optax
    from flax import nnx
    from tunix.models.qwen3 import model as qwen3
    from tunix.sft import peft_trainer, utils

    def inputs(batch: Any) -> Mapping[str, Any]:
        mask = batch.input_tokens != 0
        return {
            "input_tokens": batch.input_tokens,
            "input_mask": batch.input_mask,
            "positions": utils.build_positions_from_mask(mask),
            "attention_mask": utils.make_causal_attn_mask(mask),
        }

    def trainer() -> Any:
        remat = qwen3.RematConfig.DECODER if is_recomputed else qwen3.RematConfig.NONE
        changes = {"dtype": jnp.bfloat16, "remat_config": remat}
        config = dataclasses.replace(qwen3.ModelConfig.qwen3_0p6b(), **changes)
        settings = peft_trainer.TrainingConfig(eval_every_n_steps=100)
        model = qwen3.Qwen3(config, rngs=nnx.Rngs(0))
        made = peft_trainer.PeftTrainer(model, optax.adamw(1e-4), settings)
        return made.with_gen_model_input_fn(inputs)

    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    batch = peft_trainer.TrainingInput(input_tokens=tokens, input_mask=tokens)
    mesh = jax.sharding.AbstractMesh((4, 2), ("fsdp", "tp"))
    return Tunix(described(trainer), batch, mesh, profile, topology, donate_model=True)


def levanter(profile: str, topology: str | None, is_recomputed: bool) -> Any:
    """Returns a Llama of Levanter with 0.6 billion parameters, in its trainer with AdamW, fully
    sharded over eight devices. `is_recomputed`: whether the blocks are."""
    from kiwi.frameworks.levanter import Levanter, described, install_stand_ins

    install_stand_ins()
    import haliax as hax
    import jmp
    import levanter.tracker
    import optax
    from levanter.layers.attention import AttentionMask
    from levanter.models.llama import LlamaConfig
    from levanter.models.lm_model import LmExample
    from levanter.trainer import Trainer, TrainerConfig

    levanter.tracker.set_global_tracker(levanter.tracker.NoopTracker())
    sizes = {"hidden_dim": 1536, "intermediate_dim": 4096, "num_layers": 16, "num_heads": 12}
    model = LlamaConfig(
        max_seq_len=LENGTH, num_kv_heads=12, gradient_checkpointing=is_recomputed, **sizes
    )
    config = TrainerConfig(
        id="kiwi",
        mp=jmp.get_policy("params=float32,compute=bfloat16,output=bfloat16"),
        train_batch_size=BATCH,
        require_accelerator=False,
        tracker=levanter.tracker.NoopConfig(),
    )

    def loss(model: Any, batch: Any, *, key: Any = None) -> Any:
        return model.compute_next_token_loss(batch, key=key)

    def array(dtype: Any) -> Any:
        shape = jax.ShapeDtypeStruct((BATCH, LENGTH), dtype)
        return hax.NamedArray(shape, ("batch", "position"))

    trainer = Trainer(config, optax.adamw(1e-4), loss, add_default_hooks=False)
    vocabulary = hax.Axis("vocab", 32000)
    state = described(trainer, lambda: model.build(vocabulary, key=jax.random.PRNGKey(0)))
    batch = LmExample(array(jnp.int32), array(jnp.float32), AttentionMask.causal())
    return Levanter(trainer, state, batch, profile, topology)


def main(framework: str, profile: str, *asked: str) -> None:
    """Writes the rows of a framework's model for a profile: those asked for, or all."""
    use_cpu_devices(8)
    target, make = TARGETS[profile], {"tunix": tunix, "levanter": levanter}[framework]

    def framework_plan(is_recomputed: bool) -> kiwi.Plan:
        adapter = make(profile, target["topology"], is_recomputed)
        return price(adapter, adapter.recipe, verify=target["verify"]).plan

    def own_plan() -> kiwi.Plan:
        options = {"respect_user_shardings": False, "effort": "quick", "plan_cache": False}
        adapter = make(profile, target["topology"], True)
        return adapter.plan(verify=target["verify"], **options)

    plans = {
        "framework's": lambda: framework_plan(True),
        "framework's, nothing recomputed": lambda: framework_plan(False),
        "kiwi's": own_plan,
    }
    for what in asked or plans:
        write(f"{framework} {profile}", told(framework), row_of(what, plans[what]))


def write(key: str, made_with: dict[str, Any], row: dict[str, Any]) -> None:
    """Writes a row, in place of the row of the same name."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows = [old for old in results.get(key, [])[1:] if old["what"] != row["what"]]
    results[key] = [made_with, *rows, row]
    print(json.dumps(row), flush=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def told(framework: str) -> dict[str, Any]:
    """Returns the commit, the date and the versions that the rows were made with."""
    own = {"tunix": ("google-tunix", "flax"), "levanter": ("marin-levanter", "marin-haliax")}
    names = ("jax", "libtpu", *own[framework])
    versions = {name: metadata.version(name) for name in names}
    return {"commit": commit(), "date": datetime.date.today().isoformat(), "versions": versions}


def row_of(what: str, plan: Any) -> dict[str, Any]:
    """Returns the figures of a plan, and the processor seconds that it took."""
    started = cpu_seconds()
    try:
        made = plan()
    except KiwiError as error:
        return {"what": what, "cpu_seconds": cpu_seconds() - started, "refused": str(error)}
    compiled = made.compiled
    return {
        "what": what,
        "cpu_seconds": cpu_seconds() - started,
        "seconds": made.estimate.step_seconds,
        "peak_bytes": made.estimate.peak_bytes,
        "compiled_seconds": compiled and compiled.step_seconds,
        "compiled_peak_bytes": compiled and compiled.peak_bytes,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
