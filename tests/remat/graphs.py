"""Small graphs for the tests of the planners."""

import random

from kiwi.solver.remat.graph import Operator, RematGraph, Value, single_output_graph


def random_graph(seed: int, operators: int = 6, results: bool = True) -> RematGraph:
    """A random graph whose operators write one value each."""
    draw = random.Random(seed)
    edges = []
    for reader in range(1, operators):
        writers = draw.sample(range(reader), min(reader, draw.choice((1, 1, 2, 3))))
        edges += [(writer, reader) for writer in writers]
    sizes = [draw.randint(1, 9) for _ in range(operators)]
    seconds = [float(draw.randint(0, 7)) for _ in range(operators)]
    kept = frozenset(v for v in range(operators) if results and draw.random() < 0.15)
    return single_output_graph(seconds, sizes, edges, results=kept)


def random_general_graph(seed: int, operators: int = 5) -> RematGraph:
    """A random graph with several outputs, temporary memory, graph inputs and results."""
    draw = random.Random(seed)
    values = [Value("input", draw.randint(1, 4))]
    listed = []
    for index in range(operators):
        inputs = draw.sample(range(len(values)), min(len(values), draw.choice((1, 2, 2))))
        outputs = list(range(len(values), len(values) + draw.choice((1, 1, 2))))
        values += [Value(f"v{place}", draw.randint(1, 9)) for place in outputs]
        listed.append(
            Operator(
                f"op{index}",
                float(draw.randint(1, 7)),
                tuple(inputs),
                tuple(outputs),
                draw.choice((0, 0, 3, 6)),
            )
        )
    results = frozenset(v for v in range(1, len(values)) if draw.random() < 0.1)
    return RematGraph(tuple(listed), tuple(values), tuple(range(operators)), results)


def training_chain(layers: int, activation_bytes: int = 10) -> RematGraph:
    """Forward operators 0 … layers - 1, then their backward operators in reverse.

    Backward operator of layer k reads the gradient of layer k + 1 and the input of layer k.
    """
    edges = [(k - 1, k) for k in range(1, layers)]
    for layer in range(layers):
        backward = 2 * layers - 1 - layer
        edges.append((backward - 1, backward))
        if layer:
            edges.append((layer - 1, backward))
    seconds = [1.0] * layers + [2.0] * layers
    return single_output_graph(seconds, [activation_bytes] * (2 * layers), edges)
