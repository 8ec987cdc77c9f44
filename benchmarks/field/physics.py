"""Differential equations, operators between functions, Gaussian processes and molecules."""

import jax
import jax.numpy as jnp

from benchmarks.field.program import (
    Made,
    descended,
    integers,
    keys,
    normal,
    program,
    trained,
    weights,
)


@program(
    small={"batch": 16, "width": 8, "hidden": 16, "steps": 4},
)
def neural_ode_scan(
    batch: int = 8192, width: int = 256, hidden: int = 1024, steps: int = 32
) -> Made:
    """Neural ODE by a scan of Runge-Kutta steps, each under jax.checkpoint (torchdiffeq ports)."""

    def field(p, t, y):
        return jnp.tanh(y @ p["in"] + t * p["time"]) @ p["out"]

    @jax.checkpoint
    def runge_kutta(p, t, y):
        h = 1.0 / steps
        k1 = field(p, t, y)
        k2 = field(p, t + h / 2, y + h / 2 * k1)
        k3 = field(p, t + h / 2, y + h / 2 * k2)
        k4 = field(p, t + h, y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def loss(p, batch):
        y, target = batch
        times = jnp.arange(steps) / steps
        y, _ = jax.lax.scan(lambda y, t: (runge_kutta(p, t, y), None), y, times)
        return jnp.mean((y - target) ** 2)

    def params(key):
        return {
            **weights(key, **{"in": (width, hidden), "out": (hidden, width)}),
            "time": jnp.ones((hidden,)) * 0.1,
        }

    def data(key):
        return normal(key, batch, width), normal(key, batch, width)

    return trained(loss, params, data)


@program(
    small={"batch": 16, "width": 8, "hidden": 16},
)
def neural_ode_adjoint(batch: int = 8192, width: int = 256, hidden: int = 1024) -> Made:
    """Neural ODE: an adaptive while loop forward, its adjoint by another one backward."""

    def field(p, y):
        return jnp.tanh(y @ p["in"]) @ p["out"]

    def solved(derivative, start):
        """Heun steps of adapted sizes from 0 to 1."""

        def going(held):
            return held[0] < 1.0

        def advance(held):
            t, h, y = held
            h = jnp.minimum(h, 1.0 - t)
            first = derivative(y)
            euler = jax.tree.map(lambda y, d: y + h * d, y, first)
            second = derivative(euler)
            heun = jax.tree.map(lambda y, a, b: y + h / 2 * (a + b), y, first, second)
            wrong = sum(
                jnp.mean((a - b) ** 2)
                for a, b in zip(jax.tree.leaves(euler), jax.tree.leaves(heun), strict=True)
            )
            good = wrong < 1e-2
            kept = jax.tree.map(lambda new, old: jnp.where(good, new, old), heun, y)
            return t + jnp.where(good, h, 0.0), jnp.where(good, 1.5 * h, 0.5 * h) + 1e-3, kept

        return jax.lax.while_loop(going, advance, (0.0, 0.1, start))[2]

    @jax.custom_vjp
    def flow(p, y):
        return solved(lambda y: field(p, y), y)

    def forward(p, y):
        out = flow(p, y)
        return out, (p, out)

    def backward(held, cotangent):
        p, out = held

        def derivative(joint):
            y, a, _ = joint
            value, pull = jax.vjp(field, p, y)
            of_p, of_y = pull(a)
            return jax.tree.map(jnp.negative, value), of_y, of_p

        zeros = jax.tree.map(jnp.zeros_like, p)
        _, of_y, of_p = solved(derivative, (out, cotangent, zeros))
        return of_p, of_y

    flow.defvjp(forward, backward)

    def loss(p, batch):
        y, target = batch
        return jnp.mean((flow(p, y @ p["lift"]) - target) ** 2)

    def params(key):
        shapes = {"in": (width, hidden), "out": (hidden, width), "lift": (width, width)}
        return weights(key, **shapes)

    def data(key):
        return normal(key, batch, width), normal(key, batch, width)

    return trained(loss, params, data)


@program(
    small={"layers": 2, "batch": 8, "length": 32, "width": 16, "modes": 4},
)
def fno_1d(
    layers: int = 4, batch: int = 512, length: int = 1024, width: int = 64, modes: int = 16
) -> Made:
    """Fourier neural operator in one dimension (Burgers): spectral mixing of channels."""

    def loss(params, batch):
        x, target = batch
        for p in params["layers"]:
            low = jnp.fft.rfft(x, axis=-1)[..., :modes]
            mixed = jnp.einsum("bim,iom->bom", low, p["re"] + 1j * p["im"])
            full = jnp.zeros((*x.shape[:2], length // 2 + 1), mixed.dtype)
            wide = jnp.fft.irfft(full.at[..., :modes].set(mixed), n=length, axis=-1)
            x = jax.nn.gelu(wide + jnp.einsum("bil,io->bol", x, p["skip"]))
        return jnp.mean((jnp.einsum("bil,i->bl", x, params["out"]) - target) ** 2)

    def params(key):
        shapes = {"re": (width, width, modes), "im": (width, width, modes)}
        parts = [weights(k, **shapes, skip=(width, width)) for k in keys(key, layers)]
        return {"layers": parts, "out": normal(key, width) / width}

    def data(key):
        return normal(key, batch, width, length), normal(key, batch, length)

    return trained(loss, params, data)


@program(
    small={"layers": 1, "batch": 8, "size": 16, "width": 8, "modes": 3},
)
def fno_2d(
    layers: int = 3, batch: int = 64, size: int = 64, width: int = 32, modes: int = 12
) -> Made:
    """Fourier neural operator in two dimensions (Darcy, Navier-Stokes): rfft2 and four corners."""

    def loss(params, batch):
        x, target = batch  # [B, X, Y, C]
        x = x[..., None] * params["lift"]
        for p in params["layers"]:
            spectrum = jnp.fft.rfft2(x, axes=(1, 2))
            kernel = p["re"] + 1j * p["im"]
            out = jnp.zeros(spectrum.shape, spectrum.dtype)
            for corner, rows in enumerate((slice(0, modes), slice(-modes, None))):
                part = spectrum[:, rows, :modes]
                mixed = jnp.einsum("bxyi,ioxy->bxyo", part, kernel[corner])
                out = out.at[:, rows, :modes].set(mixed)
            x = jax.nn.gelu(jnp.fft.irfft2(out, s=(size, size), axes=(1, 2)) + x @ p["skip"])
        return jnp.mean((x @ params["out"] - target) ** 2)

    def params(key):
        shapes = {name: (2, width, width, modes, modes) for name in ("re", "im")}
        parts = [weights(k, **shapes, skip=(width, width)) for k in keys(key, layers)]
        ends = {"lift": normal(key, width) * 0.3, "out": normal(key, width) / width}
        return {"layers": parts, **ends}

    def data(key):
        return normal(key, batch, size, size), normal(key, batch, size, size)

    return trained(loss, params, data)


@program(
    small={"points": 32, "width": 16, "layers": 2},
)
def pinn(points: int = 16384, width: int = 512, layers: int = 4) -> Made:
    """PINN: residuals of a PDE by jacobian and hessian of a network, vmapped over points."""

    def network(params, x):  # [2] to a scalar
        for p in params["layers"]:
            x = jnp.tanh(x @ p["w"] + p["b"])
        return (x @ params["out"]).sum()

    def loss(params, batch):
        inside, border, values = batch

        def residual(x):
            slope = jax.jacrev(lambda x: network(params, x))(x)
            curvature = jax.hessian(lambda x: network(params, x))(x)
            return slope[0] + network(params, x) * slope[1] - 0.01 * curvature[1, 1]

        at_border = jax.vmap(lambda x: network(params, x))(border)
        return jnp.mean(jax.vmap(residual)(inside) ** 2) + jnp.mean((at_border - values) ** 2)

    def params(key):
        sizes = [2, *[width] * layers]
        parts = [
            weights(k, w=(a, b), b=(b,))
            for k, a, b in zip(keys(key, layers), sizes[:-1], sizes[1:], strict=True)
        ]
        return {"layers": parts, **weights(key, out=(width, 1))}

    def data(key):
        return normal(key, points, 2), normal(key, points // 4, 2), normal(key, points // 4)

    return trained(loss, params, data)


@program(
    small={"tasks": 8, "points": 16, "features": 3},
)
def gaussian_process(tasks: int = 16, points: int = 1024, features: int = 8) -> Made:
    """Gaussian process regression (GPJax): marginal likelihood by Cholesky, several outputs."""

    def negative_likelihood(p, x, y):
        scaled = x / jnp.exp(p["length"])
        square = jnp.sum((scaled[:, None] - scaled[None]) ** 2, -1)
        covariance = jnp.exp(p["scale"] - 0.5 * square)
        lower = jnp.linalg.cholesky(covariance + (0.1 + jnp.exp(p["noise"])) * jnp.eye(points))
        white = jax.scipy.linalg.solve_triangular(lower, y, lower=True)
        return 0.5 * white @ white + jnp.log(jnp.diagonal(lower)).sum()

    def loss(params, batch):
        x, y = batch
        return jax.vmap(negative_likelihood)(params, x, y).mean() / points

    def params(key):
        del key
        zeros = jnp.zeros((tasks,))
        return {"length": jnp.zeros((tasks, features)), "scale": zeros, "noise": zeros}

    def data(key):
        return normal(key, tasks, points, features), normal(key, tasks, points)

    return trained(loss, params, data)


@program(
    small={"systems": 8, "atoms": 6, "width": 8, "layers": 1},
)
def molecular_forces(systems: int = 64, atoms: int = 64, width: int = 64, layers: int = 2) -> Made:
    """Interatomic potentials (SchNet, JAX-MD): forces as gradients inside of the loss."""

    def energy(params, position, species):
        gaps = position[:, None] - position[None]
        distance = jnp.sqrt(jnp.sum(gaps**2, -1) + 1e-3)
        centres = jnp.linspace(0.0, 5.0, width)
        radial = jnp.exp(-((distance[..., None] - centres) ** 2))
        x = params["species"][species]
        for p in params["layers"]:
            filters = jax.nn.silu(radial @ p["filter"])
            x = x + jax.nn.silu(jnp.einsum("ijd,jd->id", filters, x @ p["in"])) @ p["out"]
        return (x @ params["read"]).sum()

    def loss(params, batch):
        position, species, energies, forces = batch
        values, slopes = jax.vmap(jax.value_and_grad(energy, argnums=1), (None, 0, 0))(
            params, position, species
        )
        return jnp.mean((values - energies) ** 2) + 10 * jnp.mean((slopes + forces) ** 2)

    def params(key):
        square = {name: (width, width) for name in ("filter", "in", "out")}
        parts = [weights(k, **square) for k in keys(key, layers)]
        return {"layers": parts, **weights(key, species=(8, width), read=(width, 1))}

    def data(key):
        position = normal(key, systems, atoms, 3)
        return position, integers(key, 8, systems, atoms), normal(key, systems), position

    return descended(loss, params, data, rate=1e-3)


@program(
    small={"systems": 8, "atoms": 6, "width": 8, "layers": 1},
)
def equivariant(systems: int = 64, atoms: int = 48, width: int = 64, layers: int = 2) -> Made:
    """E(3)-equivariant network (e3nn, PaiNN): scalars and vectors, messages between all atoms."""

    def loss(params, batch):
        position, target = batch
        gaps = position[:, :, None] - position[:, None]
        distance = jnp.sqrt(jnp.sum(gaps**2, -1, keepdims=True) + 1e-3)
        unit = gaps / distance
        radial = jnp.exp(-((distance - jnp.linspace(0.0, 4.0, width)) ** 2))
        s = jnp.ones((*position.shape[:2], width))
        v = jnp.zeros((*position.shape[:2], width, 3))
        for p in params["layers"]:
            filters = radial @ p["filter"]
            s_part, v_part, u_part = jnp.split(filters * (s @ p["message"])[:, None], 3, -1)
            s = s + jax.nn.silu(s_part.sum(2))
            along = jnp.einsum("bijd,bijx->bidx", u_part, unit)
            v = v + along + jnp.einsum("bijd,bjdx->bidx", v_part, v) / atoms
            norms = jnp.sqrt(jnp.sum(v**2, -1) + 1e-6)
            gate = jax.nn.silu(jnp.concatenate([s, norms], -1) @ p["gate"])
            s, v = s + gate @ p["scalar"], v * (gate @ p["vector"])[..., None]
        return jnp.mean((jnp.einsum("bidx,d->bix", v, params["read"]) - target) ** 2)

    def params(key):
        shapes = {
            "filter": (width, 3 * width),
            "message": (width, 3 * width),
            "gate": (2 * width, width),
            "scalar": (width, width),
            "vector": (width, width),
        }
        parts = [weights(k, **shapes) for k in keys(key, layers)]
        return {"layers": parts, "read": normal(key, width) / width}

    def data(key):
        return normal(key, systems, atoms, 3), normal(key, systems, atoms, 3)

    return descended(loss, params, data, rate=1e-3)


@program(
    small={"functions": 8, "points": 16, "sensors": 8, "width": 16},
)
def deeponet(
    functions: int = 1024, points: int = 1024, sensors: int = 256, width: int = 1024
) -> Made:
    """DeepONet: branch and trunk networks joined by an outer product over query points."""

    def network(layers, x):
        for p in layers:
            x = jax.nn.gelu(x @ p)
        return x

    def loss(params, batch):
        sampled, queried, target = batch
        branch, trunk = network(params["branch"], sampled), network(params["trunk"], queried)
        return jnp.mean((branch @ trunk.T / width - target) ** 2)

    def params(key):
        def chain(key, first):
            sizes = [first, width, width, width]
            drawn = zip(keys(key, 3), sizes[:-1], sizes[1:], strict=True)
            return [weights(k, w=(a, b))["w"] for k, a, b in drawn]

        return {"branch": chain(key, sensors), "trunk": chain(key, 2)}

    def data(key):
        return (
            normal(key, functions, sensors),
            normal(key, points, 2),
            normal(key, functions, points),
        )

    return trained(loss, params, data)
