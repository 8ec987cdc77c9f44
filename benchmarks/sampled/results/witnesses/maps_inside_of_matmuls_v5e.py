"""The part of a decoder's step in bfloat16 in which the peak deviates on v5e: 1.45 times the compiled one.

XLA:TPU computes the gradient of the scores, an elementwise product, inside of both matmuls that read it, and stores it for
neither. The estimate holds it. In the whole step (four layers, eight devices) the same is done to the softmax's quotient:
480 MiB at the peak, none of it compiled; 1.43 GiB estimated, 987 MiB compiled.

kiwi deviation FILE.py:function --mesh 1 --profile v5e --verify tpu --budget 1024TiB
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives


def spec(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype)


def function(x0, x1, x2, x3, x4, x5, x6):
    with jax.named_scope("transpose(jvp())"):
        x7 = lax.mul(x0, x1)
        x8 = lax.mul(x7, jnp.array(0.125, jnp.bfloat16))
        x9 = lax.dot_general(
            x8,
            x2,
            dimension_numbers=(((2,), (1,)), ((0, 1), (0, 2))),
            precision=None,
            preferred_element_type=jnp.bfloat16,
        )
        x10 = lax.dot_general(
            x8,
            x3,
            dimension_numbers=(((3,), (1,)), ((0, 1), (0, 2))),
            precision=None,
            preferred_element_type=jnp.bfloat16,
        )
        x11 = lax.transpose(x10, (0, 2, 1, 3))
        x12 = lax.dot_general(
            x11,
            x4,
            dimension_numbers=(((2, 3), (1, 2)), ((), ())),
            precision=None,
            preferred_element_type=jnp.bfloat16,
        )
        x13 = lax.add(x5, x12)
        x14 = lax.mul(x6, x13)
    return [x9, x14]


def make_args():
    return (
        spec(jnp.bfloat16, 3, 20, 1024, 1024),
        spec(jnp.bfloat16, 3, 20, 1024, 1024),
        spec(jnp.bfloat16, 3, 1024, 20, 64),
        spec(jnp.bfloat16, 3, 1024, 20, 64),
        spec(jnp.bfloat16, 1280, 20, 64),
        spec(jnp.bfloat16, 3, 1024, 1280),
        spec(jnp.bfloat16, 3, 1024, 1280),
    )
