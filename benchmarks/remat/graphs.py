"""Generated graphs of any size that resemble the published ones: random layered graphs, and
training of convnets.

Sizes and times are random, and not fitted to published graphs.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kiwi.literature.remat import Operator, RematGraph, Value, single_output_graph
from kiwi.literature.remat.offload import Update


def layered(operators: int, seed: int = 0) -> RematGraph:
    """Returns a random layered graph. Most edges join neighbouring layers, and some reach further
    back.

    Operators read one to six values, more in larger graphs. Sizes are at most 8000, times at most
    1000.
    """
    draw = random.Random(seed)
    layer_of = [0]
    while len(layer_of) < operators:
        width = draw.randint(2, max(3, operators // 12))
        layer_of += [layer_of[-1] + 1] * min(width, operators - len(layer_of))
    most_reads = 3 if operators < 200 else 6
    edges = []
    for reader, layer in enumerate(layer_of):
        near = [k for k in range(reader) if layer_of[k] == layer - 1]
        far = [k for k in range(reader) if layer_of[k] < layer - 1]
        for _ in range(draw.randint(1, most_reads)):
            pool = far if far and draw.random() < 0.12 else near
            if pool:
                edges.append((draw.choice(pool), reader))
    sizes = [round(10 * draw.randint(1, 20) * draw.randint(1, 40)) for _ in range(operators)]
    seconds = [float(draw.randint(0, 1000)) for _ in range(operators)]
    return single_output_graph(seconds, sizes, edges)


@dataclass
class _Net:
    """Forward operators under construction, with edges, sizes and times."""

    edges: list[tuple[int, int]]
    sizes: list[int]
    seconds: list[float]

    def add(self, inputs: list[int], size: int, seconds: float) -> int:
        """Adds an operator, and returns its number."""
        self.edges += [(k, len(self.sizes)) for k in inputs]
        self.sizes.append(size)
        self.seconds.append(seconds)
        return len(self.sizes) - 1

    def training(self) -> RematGraph:
        """Returns the graph with a backward operator for each operator, which reads gradients and
        the inputs of its forward operator."""
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
    """Residual blocks of convolution, normalisation and activation. The size halves after each
    quarter of the blocks."""
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
    """An encoder, and a decoder that reads the result of every encoder level."""
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
    """One operator of a block: the bytes of its output and of its weight, and the seconds of its
    forward computation."""

    output_bytes: int
    weight_bytes: int
    seconds: float


@dataclass(frozen=True)
class Optimizer:
    """The optimizer state of a weight, as a multiple of the weight's bytes, and the rates of
    updates on the device and on the host."""

    state_factor: int
    device_bytes_per_second: float
    host_bytes_per_second: float


def fine_tuning(
    block: Sequence[Layer], blocks: int, optimizer: Optimizer
) -> tuple[RematGraph, tuple[Update, ...]]:
    """Returns the training step of blocks of layers in a row, whose weights are updated as soon as
    their gradient exists.

    If a block has several layers, the last one also reads the block's input (a residual
    connection); in the first block it reads the output of the block's first layer.

    Backward operators take twice as long as forward ones. They read the following gradient, the
    layer's input and its weight. An update reads the weight, its state and its gradient, and
    overwrites the first two.
    """
    step = _Step(list(block) * blocks, len(block), optimizer)
    for k in range(len(step.layers)):
        step.add_forward(k)
    for k in reversed(range(len(step.layers))):
        step.add_backward(k)
    order = tuple(range(len(step.operators)))
    parts = tuple(step.operators), tuple(step.values), order
    graph = RematGraph(*parts, frozenset(step.results), tuple(step.pairs))
    return graph, tuple(step.updates)


class _Step:
    """A training step of layers under construction. A gradient belongs to the output of a layer."""

    def __init__(self, layers: list[Layer], size: int, optimizer: Optimizer) -> None:
        self.layers, self._size, self._optimizer = layers, size, optimizer
        self.values: list[Value] = []
        self.operators: list[Operator] = []
        self.updates: list[Update] = []
        self.results: list[int] = []
        self.pairs: list[tuple[int, int]] = []
        self._weights = [self._value(f"w{k}", layer.weight_bytes) for k, layer in enumerate(layers)]
        state_bytes = [optimizer.state_factor * layer.weight_bytes for layer in layers]
        self._states = [self._value(f"m{k}", size) for k, size in enumerate(state_bytes)]
        self._outputs: list[int] = []
        self._gradients: dict[int, int] = {}

    def add_forward(self, k: int) -> None:
        """Adds the forward operator of layer k. It reads the previous layer's output, the layer's
        weight, and at the end of a block the block's input."""
        reads = [*self._before(k), *self._residual(k), *self._weight(k)]
        self._outputs.append(self._value(f"v{k}", self.layers[k].output_bytes))
        self._compute(f"f{k}", self.layers[k].seconds, reads, self._outputs[-1:])

    def add_backward(self, k: int) -> None:
        """Adds the backward operator of layer k. It writes the gradients of the previous layer's
        output and of the weight, which is then updated."""
        layer, written = self.layers[k], []
        reads = [self._gradients.get(k, self._outputs[k]), *self._before(k), *self._weight(k)]
        if k % self._size == 0 and self._size > 1:
            reads.append(self._gradients.get(k + self._size - 1, self._outputs[k]))
        if k:
            self._gradients[k - 1] = self._value(f"d{k}", self.layers[k - 1].output_bytes)
            written.append(self._gradients[k - 1])
        if layer.weight_bytes:
            written.append(self._value(f"dw{k}", layer.weight_bytes))
        self.pairs.append((k, len(self.operators)))
        self._compute(f"b{k}", 2 * layer.seconds, reads, written)
        if layer.weight_bytes:
            self._update(k, written[-1])

    def _update(self, k: int, gradient: int) -> None:
        overwritten, size_bytes = (self._weights[k], self._states[k]), self.layers[k].weight_bytes
        self.results.append(self._value(f"u{k}", 0))
        on_host = size_bytes / self._optimizer.host_bytes_per_second
        self.updates.append(Update(len(self.operators), frozenset(overwritten), on_host))
        seconds = size_bytes / self._optimizer.device_bytes_per_second
        self._compute(f"update{k}", seconds, [*overwritten, gradient], self.results[-1:])

    def _before(self, k: int) -> list[int]:
        return self._outputs[k - 1 : k] if k else []

    def _weight(self, k: int) -> list[int]:
        return self._weights[k : k + 1] if self.layers[k].weight_bytes else []

    def _residual(self, k: int) -> list[int]:
        first = k - self._size + 1
        ends_block = (k + 1) % self._size == 0 and self._size > 1
        return (self._before(first) or self._outputs[:1]) if ends_block else []

    def _value(self, name: str, size_bytes: int) -> int:
        self.values.append(Value(name, size_bytes))
        return len(self.values) - 1

    def _compute(self, name: str, seconds: float, reads: list[int], writes: list[int]) -> None:
        inputs = tuple(dict.fromkeys(reads))
        self.operators.append(Operator(name, seconds, inputs, tuple(writes)))


FAMILIES: dict[str, Callable[[int], RematGraph]] = {
    "layered": layered,
    "resnet": resnet,
    "unet": unet,
}


def graph_named(name: str) -> RematGraph:
    """Returns the graph of a name such as "layered-500": family and size."""
    family, size = name.rsplit("-", 1)
    return FAMILIES[family](int(size))
