"""An equivariant network on molecules, written with e3nn and Flax, with messages along edges.

Features are irreducible representations of O(3) (`e3nn_jax.IrrepsArray`). A layer multiplies the
features of an edge's source by the spherical harmonics of the edge. A network of the edge's length
weights the products, and the layer adds them at the target. A molecule is a graph of `nodes` atoms,
each with `neighbours` edges. The batch is one graph of all molecules. The network is trained on
energies.
"""

from dataclasses import dataclass
from typing import Any

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from examples._common import Batch


@dataclass(frozen=True)
class Config:
    """Size and training. Features are `channels` scalars, vectors and tensors of rank 2 each."""

    layers: int
    channels: int
    molecules: int
    nodes: int
    neighbours: int
    species: int = 8
    learning_rate: float = 1e-3


SIZES = {
    "tiny": Config(layers=1, channels=8, molecules=16, nodes=8, neighbours=4),
    "small": Config(layers=2, channels=16, molecules=32, nodes=16, neighbours=8),
    "full": Config(layers=4, channels=128, molecules=256, nodes=64, neighbours=16),
}


class Layer(nn.Module):
    """Maps node features to node features with the representations `irreps`."""

    irreps: str

    @nn.compact
    def __call__(self, x: Any, edges: Any, lengths: jax.Array, graph: Any) -> Any:
        """Returns the new features. `graph` holds the source and the target of each edge."""
        sources, targets = graph
        irreps = e3nn.Irreps(self.irreps)
        angles = e3nn.spherical_harmonics("0e + 1o + 2e", edges, True)
        products = e3nn.tensor_product(
            e3nn.flax.Linear(x.irreps, name="up")(x)[sources], angles, filter_ir_out=irreps
        )
        radial = e3nn.flax.MultiLayerPerceptron((64, products.irreps.num_irreps), jax.nn.silu)
        messages = products * radial(e3nn.bessel(lengths, 8, 5.0))
        sums = e3nn.scatter_sum(messages, dst=targets, output_size=x.shape[0])
        gates = e3nn.Irreps(f"{irreps.filter(drop='0e').num_irreps}x0e")
        outputs = e3nn.flax.Linear(irreps + gates, name="down")(sums)
        residual = e3nn.flax.Linear(irreps, name="self", force_irreps_out=True)
        return e3nn.gate(outputs.regroup()) + residual(x)


class Network(nn.Module):
    """Maps species and positions of atoms to the energy of each molecule."""

    config: Config

    @nn.compact
    def __call__(self, batch: Batch) -> jax.Array:
        """Returns the energies [molecules]."""
        config = self.config
        n = config.channels
        sources, targets = batch["sources"], batch["targets"]
        edges = batch["positions"][targets] - batch["positions"][sources]
        lengths = jnp.sqrt(jnp.sum(edges**2, -1) + 1e-6)
        x = e3nn.IrrepsArray(f"{n}x0e", nn.Embed(config.species, n)(batch["species"]))
        for _ in range(config.layers):
            layer = Layer(f"{n}x0e + {n}x1o + {n}x2e")
            x = layer(x, e3nn.IrrepsArray("1o", edges), lengths, (sources, targets))
        energies = e3nn.flax.Linear("0e")(x).array
        return jnp.sum(energies.reshape(config.molecules, config.nodes), -1)


def make_state(config: Config, seed: int = 0) -> Any:
    """Returns the parameters and the optimizer's state before the first step."""
    params = Network(config).init(jax.random.key(seed), make_batch(config))
    return params, optax.adam(config.learning_rate).init(params)


def make_batch(config: Config, seed: int = 0) -> Batch:
    """Returns random positions and species. Edges lead to the following atoms of the molecule."""
    position_key, species_key, energy_key = jax.random.split(jax.random.key(seed), 3)
    atoms = config.molecules * config.nodes
    atom = jnp.arange(atoms)[:, None]
    following = (atom + 1 + jnp.arange(config.neighbours)) % config.nodes
    return {
        "positions": jax.random.normal(position_key, (atoms, 3)),
        "species": jax.random.randint(species_key, (atoms,), 0, config.species, jnp.int32),
        "sources": (atom - atom % config.nodes + following).reshape(-1),
        "targets": jnp.broadcast_to(atom, following.shape).reshape(-1),
        "energies": jax.random.normal(energy_key, (config.molecules,)),
    }


def make_train_step(config: Config) -> Any:
    """Returns `train_step(state, batch) -> (state, {"loss"})`."""
    network, optimizer = Network(config), optax.adam(config.learning_rate)

    def loss(params: Any, batch: Batch) -> jax.Array:
        energies: Any = network.apply(params, batch)
        return jnp.mean((energies - batch["energies"]) ** 2)

    def train_step(state: Any, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        params, opt_state = state
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {"loss": value}

    return train_step
