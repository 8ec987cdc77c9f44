"""Training steps to plan, by their number of layers: residual perceptrons, decoders, a residual
convolutional network, a diffusion transformer, and a generator with its discriminator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from examples import gpt

Loss = Callable[[Any, Any], jax.Array]
Step = Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """A training step.

    - `make`: a function from a number of layers to the step and its arguments, as shapes.
    - `donated`: positions of arguments that the step may overwrite.
    """

    make: Callable[[int], tuple[Step, tuple[Any, ...]]]
    donated: tuple[int, ...] = (0,)


def _shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def _trained(loss: Loss, params: Any, batch: Any) -> tuple[Step, tuple[Any, ...]]:
    """Returns a step of AdamW on a loss, and its arguments."""
    optimizer = optax.adamw(1e-3)

    def step(state: Any, batch: Any) -> Any:
        params, moments = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    moments = jax.eval_shape(optimizer.init, params)
    return step, ((params, moments), batch)


def mlp_adamw(layers: int) -> tuple[Step, tuple[Any, ...]]:
    """Residual layers of one matmul and one tanh."""
    width = 4096

    def loss(weights: Any, batch: Any) -> jax.Array:
        x, target = batch
        for weight in weights:
            x = x + jnp.tanh(x @ weight)
        return jnp.mean((x - target) ** 2)

    params = [_shape(width, width)] * layers
    return _trained(loss, params, (_shape(width, width), _shape(width, width)))


def gpt_with_metrics(layers: int) -> tuple[Step, tuple[Any, ...]]:
    """An unrolled decoder, whose step also returns the norm of each parameter's gradient and
    update."""
    config = replace(gpt.SIZES["gpt-125m"], layers=layers)
    optimizer = optax.adam(1e-3)
    loss = gpt.loss

    def step(state: Any, batch: Any) -> Any:
        params, moments = state
        value, grads = jax.value_and_grad(lambda p: loss(config, None, p, batch))(params)
        updates, moments = optimizer.update(grads, moments, params)
        norms = jax.tree.map(lambda g, u: (jnp.vdot(g, g), jnp.vdot(u, u)), grads, updates)
        return (optax.apply_updates(params, updates), moments), value, norms

    params = jax.eval_shape(lambda: gpt.init_params(config, jax.random.key(0)))
    moments = jax.eval_shape(optimizer.init, params)
    return step, ((params, moments), gpt.abstract_batch(config))


def gpt_13b_bfloat16(layers: int) -> tuple[Step, tuple[Any, ...]]:
    """Layers of GPT-3 13B in bfloat16."""
    config = replace(gpt.SIZES["gpt-13b-4l"], layers=layers, dtype="bfloat16")
    return gpt.make_train_step(config), (gpt.abstract_state(config), gpt.abstract_batch(config))


def resnet(blocks: int) -> tuple[Step, tuple[Any, ...]]:
    """Bottleneck blocks in four stages. With 16 blocks it is ResNet-50."""
    widths, image, batch, classes = (64, 128, 256, 512), 224, 128, 1000
    per_stage = [blocks // 4 + (k < blocks % 4) for k in range(4)]

    def convolved(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=numbers
        )

    def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
        mean = x.mean((0, 1, 2))
        variance = jnp.square(x - mean).mean((0, 1, 2))
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale

    def block(params: Any, x: jax.Array, stride: int) -> jax.Array:
        h = jax.nn.relu(normalised(convolved(x, params["reduce"]), params["scale1"]))
        h = jax.nn.relu(normalised(convolved(h, params["spatial"], stride), params["scale2"]))
        h = normalised(convolved(h, params["expand"]), params["scale3"])
        if "project" in params:
            x = convolved(x, params["project"], stride)
        return jax.nn.relu(x + h)

    def loss(params: Any, batch: Any) -> jax.Array:
        images, labels = batch
        x = jax.nn.relu(convolved(images, params["stem"], 4))
        for stage, blocks_of_stage in enumerate(params["stages"]):
            for number, block_of_stage in enumerate(blocks_of_stage):
                x = block(block_of_stage, x, 2 if stage and not number else 1)
        logits = x.mean((1, 2)) @ params["head"]
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -chosen.mean()

    def block_params(width: int, before: int) -> dict[str, Any]:
        shapes = {
            "reduce": _shape(1, 1, before, width),
            "spatial": _shape(3, 3, width, width),
            "expand": _shape(1, 1, width, 4 * width),
            "scale1": _shape(width),
            "scale2": _shape(width),
            "scale3": _shape(4 * width),
        }
        if before != 4 * width:
            shapes["project"] = _shape(1, 1, before, 4 * width)
        return shapes

    stages, before = [], 64
    for width, count in zip(widths, per_stage, strict=True):
        stages.append([block_params(width, before if not k else 4 * width) for k in range(count)])
        before = 4 * width if count else before
    params = {"stem": _shape(7, 7, 3, 64), "stages": stages, "head": _shape(before, classes)}
    data = _shape(batch, image, image, 3), _shape(batch, dtype=jnp.int32)
    return _trained(loss, params, data)


def dit(layers: int) -> tuple[Step, tuple[Any, ...]]:
    """A diffusion transformer. The condition scales and shifts the norms of each block."""
    width, heads, batch, length = 1152, 16, 64, 256

    def modulated(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
        centred = x - x.mean(-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)
        return normal * (1 + scale[:, None]) + shift[:, None]

    def block(params: Any, x: jax.Array, wanted: jax.Array) -> jax.Array:
        parts = jnp.split(jax.nn.silu(wanted) @ params["modulation"], 6, axis=-1)
        h = modulated(x, parts[0], parts[1])
        query, key, value = (
            (h @ params[name]).reshape(batch, length, heads, -1)
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhc,bkhc->bhqk", query, key) * (width // heads) ** -0.5
        mixed = jnp.einsum("bhqk,bkhc->bqhc", jax.nn.softmax(scores), value)
        x = x + parts[2][:, None] * (mixed.reshape(batch, length, width) @ params["out"])
        h = jax.nn.gelu(modulated(x, parts[3], parts[4]) @ params["up"]) @ params["down"]
        return x + parts[5][:, None] * h

    def loss(params: Any, batch_of: Any) -> jax.Array:
        x, wanted, noise = batch_of
        for block_of_layer in params:
            x = block(block_of_layer, x, wanted)
        return jnp.mean(jnp.square(x - noise))

    square = {name: _shape(width, width) for name in ("query", "key", "value", "out")}
    others = {
        "modulation": _shape(width, 6 * width),
        "up": _shape(width, 4 * width),
        "down": _shape(4 * width, width),
    }
    data = _shape(batch, length, width), _shape(batch, width), _shape(batch, length, width)
    return _trained(loss, [square | others] * layers, data)


def dcgan(stages: int) -> tuple[Step, tuple[Any, ...]]:
    """A generator that doubles height and width in each stage, and its discriminator. Both are
    trained."""
    batch, noise, base = 256, 128, 64
    widths = [base * 2 ** min(4, stages - 1 - k) for k in range(stages)]
    numbers = ("NHWC", "HWIO", "NHWC")

    def generated(params: Any, z: jax.Array) -> jax.Array:
        x = (z @ params["dense"]).reshape(batch, 4, 4, widths[0])
        for kernel in params["kernels"]:
            x = jax.nn.relu(x)
            x = jax.lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=numbers)
        return jnp.tanh(x)

    def judged(params: Any, x: jax.Array) -> jax.Array:
        for kernel in params["kernels"]:
            x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=numbers)
            x = jax.nn.leaky_relu(x, 0.2)
        return x.reshape(batch, -1) @ params["dense"]

    generator_adam, judge_adam = optax.adam(2e-4, b1=0.5), optax.adam(2e-4, b1=0.5)

    def step(state: Any, batch_of: Any) -> Any:
        generator, judge, generator_moments, judge_moments = state
        images, z = batch_of

        def judge_loss(own: Any) -> jax.Array:
            real, fake = judged(own, images), judged(own, generated(generator, z))
            return jnp.mean(jax.nn.softplus(-real)) + jnp.mean(jax.nn.softplus(fake))

        def generator_loss(own: Any) -> jax.Array:
            return jnp.mean(jax.nn.softplus(-judged(judge, generated(own, z))))

        first, grads = jax.value_and_grad(judge_loss)(judge)
        updates, judge_moments = judge_adam.update(grads, judge_moments)
        judge = optax.apply_updates(judge, updates)
        second, grads = jax.value_and_grad(generator_loss)(generator)
        updates, generator_moments = generator_adam.update(grads, generator_moments)
        generator = optax.apply_updates(generator, updates)
        return (generator, judge, generator_moments, judge_moments), (first, second)

    up = [*zip(widths, [*widths[1:], 3], strict=True)]
    image = 4 * 2**stages
    generator = {
        "dense": _shape(noise, 16 * widths[0]),
        "kernels": [_shape(5, 5, before, behind) for before, behind in up],
    }
    judge = {
        "kernels": [_shape(5, 5, behind, before) for before, behind in reversed(up)],
        "dense": _shape(16 * widths[0], 1),
    }
    state = (
        generator,
        judge,
        jax.eval_shape(generator_adam.init, generator),
        jax.eval_shape(judge_adam.init, judge),
    )
    return step, (state, (_shape(batch, image, image, 3), _shape(batch, noise)))


PROGRAMS: Mapping[str, Program] = {
    "mlp_adamw": Program(mlp_adamw),
    "gpt_with_metrics": Program(gpt_with_metrics),
    "gpt_13b_bfloat16": Program(gpt_13b_bfloat16),
    "resnet": Program(resnet),
    "dit": Program(dit),
    "dcgan": Program(dcgan),
}
