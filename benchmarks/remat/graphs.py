"""Graphs in the spirit of the published ones, of any size: random layered, training of convnets.

Sizes and times are drawn; nothing is fitted to them.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kiwi.solver.remat import Operator, RematGraph, Value, single_output_graph
from kiwi.solver.remat.offload import Update


def layered(operators: int, seed: int = 0) -> RematGraph:
    """A random layered graph: most edges join neighbouring layers, some go far.

    Operators read one to six values, more in larger graphs; sizes are up to 8000, times up to 1000.
    """
    draw = random.Random(seed)
    layer_of = [0]
    while len(layer_of) < operators:
        width = draw.randint(2, max(3, operators // 12))
        layer_of += [layer_of[-1] + 1] * min(width, operators - len(layer_of))
    most = 3 if operators < 200 else 6
    edges = []
    for reader, layer in enumerate(layer_of):
        near = [k for k in range(reader) if layer_of[k] == layer - 1]
        far = [k for k in range(reader) if layer_of[k] < layer - 1]
        for _ in range(draw.randint(1, most)):
            pool = far if far and draw.random() < 0.12 else near
            if pool:
                edges.append((draw.choice(pool), reader))
    sizes = [round(10 * draw.randint(1, 20) * draw.randint(1, 40)) for _ in range(operators)]
    seconds = [float(draw.randint(0, 1000)) for _ in range(operators)]
    return single_output_graph(seconds, sizes, edges)


@dataclass
class _Net:
    """Forward operators under construction: edges, sizes and times."""

    edges: list[tuple[int, int]]
    sizes: list[int]
    seconds: list[float]

    def add(self, inputs: list[int], size: int, seconds: float) -> int:
        """One more operator; returns its number."""
        self.edges += [(k, len(self.sizes)) for k in inputs]
        self.sizes.append(size)
        self.seconds.append(seconds)
        return len(self.sizes) - 1

    def training(self) -> RematGraph:
        """With a backward operator for each, which reads gradients and the inputs of its own."""
        forward = len(self.sizes)
        readers: list[list[int]] = [[] for _ in self.sizes]
        writers: list[list[int]] = [[] for _ in self.sizes]
        for writer, reader in self.edges:
            readers[writer].append(reader)
            writers[reader].append(writer)
        for k in reversed(range(forward)):
            gradients = [2 * forward - 1 - r for r in readers[k]] or [k]
            size = max([self.sizes[w] for w in writers[k]], default=0)
            self.add(list(dict.fromkeys([*gradients, *writers[k]])), size, 2 * self.seconds[k])
        pairs = tuple((k, 2 * forward - 1 - k) for k in range(forward))
        return single_output_graph(self.seconds, self.sizes, self.edges, backward_of=pairs)


def resnet(blocks: int, seed: int = 0) -> RematGraph:
    """Residual blocks of convolution, normalisation and activation; size halves now and then."""
    draw, net, size = random.Random(seed), _Net([], [], []), 4096

    def unit(below: int) -> int:
        convolved = net.add([below], size, draw.uniform(80, 120))
        normal = net.add([convolved], size, size / 512)
        return net.add([normal], size, size / 1024)

    last = net.add([], size, 1.0)
    for block in range(blocks):
        if block and block % max(1, blocks // 4) == 0:
            size //= 2
        inner = unit(unit(last))
        skip = net.add([last], size, draw.uniform(10, 20)) if net.sizes[last] != size else last
        last = net.add([inner, skip], size, size / 1024)
    net.add([last], 8, 1.0)
    return net.training()


def unet(depth: int, seed: int = 0) -> RematGraph:
    """An encoder, and a decoder that reads every encoder level again."""
    draw, net, size = random.Random(seed), _Net([], [], []), 8192
    last, skips = net.add([], size, 1.0), []
    for _ in range(depth):
        for _ in range(2):
            convolved = net.add([last], size, draw.uniform(80, 120))
            last = net.add([convolved], size, size / 1024)
        skips.append((last, size))
        size //= 2
        last = net.add([last], size, size / 1024)
    for skip, size in reversed(skips):
        up = net.add([last], size, draw.uniform(20, 40))
        last = net.add([up, skip], 2 * size, size / 512)
        for _ in range(2):
            convolved = net.add([last], size, draw.uniform(80, 120))
            last = net.add([convolved], size, size / 1024)
    net.add([last], 8, 1.0)
    return net.training()


@dataclass(frozen=True)
class Layer:
    """One operator of a block: its output, its weight, and how long it computes forward."""

    output_bytes: int
    weight_bytes: int
    seconds: float


@dataclass(frozen=True)
class Optimizer:
    """State beside each weight, as a multiple of it, and how fast weights are updated."""

    state_factor: int
    device_bytes_per_second: float
    host_bytes_per_second: float


def fine_tuning(
    block: Sequence[Layer], blocks: int, optimizer: Optimizer
) -> tuple[RematGraph, tuple[Update, ...]]:
    """Blocks of layers in a row, with weights that are updated as soon as their gradient is there.

    Backward operators take twice as long; they read the gradient behind, the layer's input and its
    weight. An update reads the weight, its state and its gradient, and overwrites the first two.
    """
    layers = [layer for _ in range(blocks) for layer in block]
    count, values, operators = len(layers), [], []

    def value(name: str, size_bytes: int) -> int:
        values.append(Value(name, size_bytes))
        return len(values) - 1

    weights = [value(f"w{k}", each.weight_bytes) for k, each in enumerate(layers)]
    state_bytes = [optimizer.state_factor * each.weight_bytes for each in layers]
    states = [value(f"m{k}", size) for k, size in enumerate(state_bytes)]
    outputs: list[int] = []
    for k, each in enumerate(layers):
        inputs = (*outputs[-1:], weights[k])
        outputs.append(value(f"v{k}", each.output_bytes))
        operators.append(Operator(f"f{k}", each.seconds, inputs, (outputs[-1],)))
    gradient, pairs, updates, results = outputs[-1], [], [], []
    for k in reversed(range(count)):
        each, before = layers[k], outputs[k - 1 : k] if k else []
        own, weight_gradient = [], value(f"dw{k}", each.weight_bytes)
        if k:
            own = [value(f"d{k}", layers[k - 1].output_bytes)]
        pairs.append((k, len(operators)))
        reads = tuple(dict.fromkeys((gradient, *before, weights[k])))
        written = (*own, weight_gradient)
        operators.append(Operator(f"b{k}", 2 * each.seconds, reads, written))
        done = value(f"u{k}", 0)
        seconds = each.weight_bytes / optimizer.device_bytes_per_second
        overwritten = (weights[k], states[k])
        update = Operator(f"update{k}", seconds, (*overwritten, weight_gradient), (done,))
        on_host = each.weight_bytes / optimizer.host_bytes_per_second
        updates.append(Update(len(operators), frozenset(overwritten), on_host))
        operators.append(update)
        results.append(done)
        gradient = own[0] if own else gradient
    order = tuple(range(len(operators)))
    graph = RematGraph(tuple(operators), tuple(values), order, frozenset(results), tuple(pairs))
    return graph, tuple(updates)


FAMILIES: dict[str, Callable[[int], RematGraph]] = {
    "layered": layered,
    "resnet": resnet,
    "unet": unet,
}


def graph_named(name: str) -> RematGraph:
    """The graph of a name such as "layered-500": family and size."""
    family, size = name.rsplit("-", 1)
    return FAMILIES[family](int(size))
