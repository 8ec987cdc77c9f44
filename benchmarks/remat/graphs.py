"""Graphs in the spirit of the published ones, of any size: random layered, training of convnets.

Sizes and times are drawn; nothing is fitted to them.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from kiwi.solver.remat import RematGraph, single_output_graph


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


FAMILIES: dict[str, Callable[[int], RematGraph]] = {
    "layered": layered,
    "resnet": resnet,
    "unet": unet,
}


def graph_named(name: str) -> RematGraph:
    """The graph of a name such as "layered-500": family and size."""
    family, size = name.rsplit("-", 1)
    return FAMILIES[family](int(size))
