"""Reinforcement learning and evolution: environments, buffers and updates in one step."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from benchmarks.field.program import (
    Made,
    adam,
    cross_entropy,
    integers,
    keys,
    normal,
    picked,
    program,
    trained,
    weights,
)


def _network(p, x):
    x = jnp.tanh(x @ p["first"] + p["first_bias"])
    x = jnp.tanh(x @ p["second"] + p["second_bias"])
    return x @ p["last"]


def _network_weights(key, inputs, width, outputs):
    return weights(
        key,
        first=(inputs, width),
        first_bias=(width,),
        second=(width, width),
        second_bias=(width,),
        last=(width, outputs),
    )


@program(
    small={"seeds": 8, "environments": 4, "time": 4, "width": 8, "epochs": 2, "parts": 2},
    donated=(),
)
def ppo(
    seeds: int = 64,
    environments: int = 64,
    time: int = 64,
    width: int = 256,
    epochs: int = 2,
    parts: int = 4,
) -> Made:
    """PureJaxRL: PPO with environment and updates in nested scans, seeds under vmap."""
    actions, size = 4, 16
    updating = optax.chain(optax.clip_by_global_norm(0.5), adam(3e-4))

    def environment(state, action):
        moved = 0.9 * state + 0.1 * jnp.sin(state + action[:, None])
        return moved, moved[:, 0], moved[:, 1] > 0.9

    def losses(p, batch):
        seen, action, old_log, advantage, target = batch
        logits = jax.nn.log_softmax(_network(p["actor"], seen))
        log = picked(logits, action)
        ratio = jnp.exp(log - old_log)
        clipped = jnp.clip(ratio, 0.8, 1.2)
        entropy = -(jnp.exp(logits) * logits).sum(-1).mean()
        value = _network(p["critic"], seen)[:, 0]
        policy = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        return policy + 0.5 * ((value - target) ** 2).mean() - 0.01 * entropy

    def one_seed(held, key):
        def act(carry, key):
            p, state = carry
            logits = jax.nn.log_softmax(_network(p["actor"], state))
            action = jax.random.categorical(key, logits)
            log = picked(logits, action)
            value = _network(p["critic"], state)[:, 0]
            after, reward, done = environment(state, action)
            after = jnp.where(done[:, None], 0.1, after)
            return (p, after), (state, action, log, value, reward, done)

        def advantage(following, seen):
            last, next_value = following
            value, reward, done = seen
            alive = 1.0 - done
            last = reward + 0.99 * next_value * alive - value + 0.95 * 0.99 * alive * last
            return (last, value), last

        def minibatch(carry, batch):
            p, moments = carry
            value, grads = jax.value_and_grad(losses)(p, batch)
            updates, moments = updating.update(grads, moments, p)
            return (optax.apply_updates(p, updates), moments), value

        params, moments, state = held
        act_key, shuffle_key = jax.random.split(key)
        (_, state), transitions = jax.lax.scan(
            act, (params, state), jax.random.split(act_key, time)
        )
        seen, action, log, value, reward, done = transitions
        final = _network(params["critic"], state)[:, 0]
        start = (jnp.zeros_like(final), final)
        _, gains = jax.lax.scan(advantage, start, (value, reward, done), reverse=True)
        whole = (seen, action, log, gains, gains + value)
        whole = jax.tree.map(lambda x: x.reshape(time * environments, *x.shape[2:]), whole)

        def epoch(carry, key):
            order = jax.random.permutation(key, time * environments)
            batches = jax.tree.map(lambda x: x[order].reshape(parts, -1, *x.shape[1:]), whole)
            return jax.lax.scan(minibatch, carry, batches)

        (params, moments), values = jax.lax.scan(
            epoch, (params, moments), jax.random.split(shuffle_key, epochs)
        )
        return (params, moments, state), {"loss": values, "reward": reward, "done": done}

    def step(held, keys):
        return jax.vmap(one_seed)(held, keys)

    def init(key):
        def one(key):
            first, second, third = keys(key, 3)
            actor = _network_weights(first, size, width, actions)
            params = {"actor": actor, "critic": _network_weights(second, size, width, 1)}
            return params, updating.init(params), normal(third, environments, size)

        drawn = jax.random.split(key, seeds)
        return jax.vmap(one)(drawn), drawn

    return step, init


@program(
    small={"slots": 64, "environments": 8, "batch": 16, "size": 8, "width": 8},
)
def dqn(
    slots: int = 262144,
    environments: int = 256,
    batch: int = 8192,
    size: int = 128,
    width: int = 1024,
) -> Made:
    """DQN (CleanRL): a replay buffer in the state, written at an index, sampled by gather."""
    actions = 8
    updating = adam()

    def step(held, key):
        params, target, moments, buffer, state, count = held
        explore, sample = jax.random.split(key)
        values = _network(params, state)
        drawn = jax.random.randint(explore, (environments,), 0, actions)
        action = jnp.where(drawn == 0, drawn, values.argmax(-1))
        after = 0.9 * state + 0.1 * jnp.sin(state + action[:, None])
        at = (count * environments) % slots
        new = {"seen": state, "action": action, "reward": after[:, 0], "after": after}
        buffer = {
            name: jax.lax.dynamic_update_slice_in_dim(buffer[name], new[name], at, 0)
            for name in buffer
        }
        rows = jax.random.randint(sample, (batch,), 0, slots)
        taken = {name: value[rows] for name, value in buffer.items()}

        def loss(p):
            best = taken["reward"] + 0.99 * _network(target, taken["after"]).max(-1)
            q = picked(_network(p, taken["seen"]), taken["action"])
            return optax.huber_loss(q, jax.lax.stop_gradient(best)).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, moments = updating.update(grads, moments, params)
        params = optax.apply_updates(params, updates)
        target = optax.incremental_update(params, target, 0.01)
        return (params, target, moments, buffer, after, count + 1), value

    def init(key):
        params = _network_weights(key, size, width, actions)
        buffer = {
            "seen": normal(key, slots, size),
            "action": integers(key, actions, slots),
            "reward": normal(key, slots),
            "after": normal(key, slots, size),
        }
        state = normal(key, environments, size)
        return (params, params, updating.init(params), buffer, state, jnp.int32(3)), key

    return step, init


@program(
    small={"steps": 2, "batch": 16, "size": 8, "width": 8},
)
def sac(steps: int = 4, batch: int = 4096, size: int = 128, width: int = 1024) -> Made:
    """SAC (Brax): actor, two critics, temperature, averaged targets, steps scanned."""
    actions = 16
    updating = adam(3e-4)

    def policy(p, seen, key):
        mean, log = jnp.split(_network(p, seen), 2, axis=-1)
        log = jnp.clip(log, -5, 2)
        noise = jax.random.normal(key, mean.shape)
        raw = mean + jnp.exp(log) * noise
        likelihood = (-0.5 * noise**2 - log - 2 * (0.7 - raw - jax.nn.softplus(-2 * raw))).sum(-1)
        return jnp.tanh(raw), likelihood

    def critics(p, seen, action):
        joint = jnp.concatenate([seen, action], -1)
        return jax.vmap(_network, (0, None))(p, joint)[..., 0]

    def one(held, xs):
        params: dict[str, Any]
        params, target, moments = held
        batch, key = xs
        now, later = jax.random.split(key)

        def loss(p):
            alpha = jnp.exp(p["temperature"])
            action, log = policy(p["actor"], batch["after"], later)
            best = critics(target, batch["after"], action).min(0)
            goal = batch["reward"] + 0.99 * (best - alpha * log)
            off = critics(p["critics"], batch["seen"], batch["action"])
            critic_loss = ((off - jax.lax.stop_gradient(goal)) ** 2).mean()
            action, log = policy(p["actor"], batch["seen"], now)
            frozen = jax.lax.stop_gradient(p["critics"])
            good = critics(frozen, batch["seen"], action).min(0)
            actor_loss = (jax.lax.stop_gradient(alpha) * log - good).mean()
            heat = -(p["temperature"] * jax.lax.stop_gradient(log + actions)).mean()
            return critic_loss + actor_loss + heat

        value, grads = jax.value_and_grad(loss)(params)
        updates, moments = updating.update(grads, moments, params)
        params = cast("dict[str, Any]", optax.apply_updates(params, updates))
        target = optax.incremental_update(params["critics"], target, 0.005)
        return (params, target, moments), value

    def step(held, batches, key):
        return jax.lax.scan(one, held, (batches, jax.random.split(key, steps)))

    def init(key):
        def critic(key):
            return _network_weights(key, size + actions, width, 1)

        params = {
            "actor": _network_weights(key, size, width, 2 * actions),
            "critics": jax.vmap(critic)(jax.random.split(key, 2)),
            "temperature": jnp.zeros(()),
        }
        batches = {
            "seen": normal(key, steps, batch, size),
            "after": normal(key, steps, batch, size),
            "action": jnp.tanh(normal(key, steps, batch, actions)),
            "reward": normal(key, steps, batch),
        }
        return (params, params["critics"], updating.init(params)), batches, key

    return step, init


@program(
    small={"batch": 16, "size": 8, "width": 16},
)
def muzero(batch: int = 8192, size: int = 512, width: int = 1024) -> Made:
    """MuZero (mctx learners): a model unrolled over few actions, gradients scaled at each."""
    unroll, actions, bins = 5, 18, 601

    def halved(x):
        return 0.5 * x + 0.5 * jax.lax.stop_gradient(x)

    def loss(params, batch):
        seen, action, values, rewards, policies = batch
        state = _network(params["representation"], seen)
        total = jnp.zeros(())
        for t in range(unroll):
            total += cross_entropy(_network(params["value"], state), values[:, t])
            logits = jax.nn.log_softmax(_network(params["policy"], state))
            total -= (policies[:, t] * logits).sum(-1).mean()
            joint = jnp.concatenate([state, jax.nn.one_hot(action[:, t], actions)], -1)
            state = halved(state + _network(params["dynamics"], joint))
            total += cross_entropy(_network(params["reward"], state), rewards[:, t])
        return total

    def params(key):
        names = ("representation", "dynamics", "value", "policy", "reward")
        sizes = ((size, width), (width + actions, width), (width, bins), (width, actions))
        sizes = (*sizes, (width, bins))
        return {
            name: _network_weights(k, inputs, width, outputs)
            for name, k, (inputs, outputs) in zip(names, keys(key, 5), sizes, strict=True)
        }

    def data(key):
        labels = (integers(k, bins, batch, unroll) for k in keys(key, 2))
        chosen = integers(key, actions, batch, unroll)
        policies = jax.nn.softmax(normal(key, batch, unroll, actions))
        return (normal(key, batch, size), chosen, *labels, policies)

    return trained(loss, params, data, optax.adamw(1e-3, eps=1e-5))


@program(
    small={"population": 16, "episodes": 2, "time": 4, "width": 8},
)
def evolution_strategies(
    population: int = 512, episodes: int = 16, time: int = 50, width: int = 256
) -> Made:
    """Evolution strategies (EvoJAX, evosax): a population by vmap, ranks, no gradients."""
    size = 32

    def fitness(params, key):
        def move(state, _):
            action = _network(params, state)
            state = 0.9 * state + 0.1 * jnp.sin(state + action)
            return state, -jnp.sum(state**2, -1)

        start = jax.random.normal(key, (episodes, size))
        return jax.lax.scan(move, start, length=time)[1].mean()

    def step(held, key):
        mean, deviation = held
        draw, play = jax.random.split(key)
        leaves, tree = jax.tree.flatten(mean)
        ks = keys(draw, len(leaves))
        noise = jax.tree.unflatten(
            tree,
            [
                jax.random.normal(k, (population // 2, *leaf.shape))
                for k, leaf in zip(ks, leaves, strict=True)
            ],
        )
        noise = jax.tree.map(lambda e: jnp.concatenate([e, -e]), noise)
        members = jax.tree.map(lambda m, e: m + deviation * e, mean, noise)
        scores = jax.vmap(fitness)(members, jax.random.split(play, population))
        ranks = jnp.argsort(jnp.argsort(scores)) / (population - 1) - 0.5
        mean = jax.tree.map(
            lambda m, e: m + 0.1 * jnp.tensordot(ranks, e, 1) / population / deviation, mean, noise
        )
        return (mean, 0.999 * deviation), scores

    def init(key):
        return (_network_weights(key, size, width, size), jnp.float32(0.1)), key

    return step, init


@program(
    small={"batch": 8, "time": 4, "width": 16, "groups": 2, "classes": 4, "size": 8},
)
def dreamer(
    batch: int = 256,
    time: int = 32,
    width: int = 1024,
    groups: int = 32,
    classes: int = 32,
    size: int = 512,
) -> Made:
    """DreamerV3: a recurrent state-space model over replayed sequences, discrete latents."""
    latent = groups * classes

    def drawn(logits, key):
        shaped = logits.reshape(-1, groups, classes)
        picked = jax.nn.one_hot(jax.random.categorical(key, shaped), classes)
        soft = jax.nn.softmax(shaped)
        return (picked + soft - jax.lax.stop_gradient(soft)).reshape(-1, latent)

    def loss(p, batch):
        seen, actions, key = batch
        codes = jax.nn.silu(seen @ p["encode"])

        def observe(held, xs):
            state, z = held
            code, action, key = xs
            x = jax.nn.silu(jnp.concatenate([z, action], -1) @ p["join"])
            reset, new, gate = jnp.split(jnp.concatenate([state, x], -1) @ p["gates"], 3, -1)
            gate = jax.nn.sigmoid(gate - 1)
            new = jnp.tanh(jax.nn.sigmoid(reset) * new)
            state = gate * new + (1 - gate) * state
            prior = state @ p["prior"]
            after = jnp.concatenate([state, code], -1) @ p["posterior"]
            z = drawn(after, key)
            return (state, z), (state, z, prior, after)

        start = jnp.zeros((seen.shape[1], width)), jnp.zeros((seen.shape[1], latent))
        time_keys = jax.random.split(key, time)
        _, (states, zs, priors, posteriors) = jax.lax.scan(
            observe, start, (codes, actions, time_keys)
        )
        rebuilt = jnp.concatenate([states, zs], -1) @ p["decode"]
        prior = jax.nn.log_softmax(priors.reshape(time, -1, groups, classes))
        posterior = jax.nn.log_softmax(posteriors.reshape(time, -1, groups, classes))
        divergence = (jnp.exp(posterior) * (posterior - prior)).sum((-1, -2))
        return ((rebuilt - seen) ** 2).mean() + jnp.maximum(divergence, 1.0).mean()

    def params(key):
        return weights(
            key,
            encode=(size, width),
            join=(latent + 16, width),
            gates=(2 * width, 3 * width),
            prior=(width, latent),
            posterior=(2 * width, latent),
            decode=(width + latent, size),
        )

    def data(key):
        return normal(key, time, batch, size), normal(key, time, batch, 16), key

    return trained(loss, params, data)
