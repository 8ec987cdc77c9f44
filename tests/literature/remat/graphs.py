"""Small graphs for the tests of the planners."""

import json
import random
from pathlib import Path

from kiwi.literature.remat.graph import Operator, RematGraph, Value, single_output_graph


def random_graph(seed: int, operators: int = 6, results: bool = True) -> RematGraph:
    """Returns a random graph whose operators write one value each."""
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
    """Returns a random graph with several outputs, temporary memory, graph inputs and results."""
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
                draw.random() < 0.8,
            )
        )
    results = frozenset(v for v in range(1, len(values)) if draw.random() < 0.1)
    return RematGraph(tuple(listed), tuple(values), tuple(range(operators)), results)


def training_chain(layers: int, activation_bytes: int = 10) -> RematGraph:
    """Forward operators 0 … layers - 1, then their backward operators in reverse.

    The backward operator of layer k reads the gradient of layer k + 1 and the input of layer k.
    """
    edges = [(k - 1, k) for k in range(1, layers)]
    for layer in range(layers):
        backward = 2 * layers - 1 - layer
        edges.append((backward - 1, backward))
        if layer:
            edges.append((layer - 1, backward))
    seconds = [1.0] * layers + [2.0] * layers
    sizes = [activation_bytes] * (2 * layers)
    names = [f"f{k}" for k in range(layers)]
    names += [f"f{k}_backward" for k in reversed(range(layers))]
    pairs = tuple((k, 2 * layers - 1 - k) for k in range(layers))
    return single_output_graph(seconds, sizes, edges, names=names, backward_of=pairs)


def random_chain(seed: int, stages: int) -> RematGraph:
    """Returns a chain of stages of one forward and one backward operator with random sizes and
    times.

    Forward operator k writes its output (value 2 k) and a value for its own backward operator (2 k
    + 1). Backward operators write a gradient and sometimes a result.
    """
    draw = random.Random(seed)
    values = [Value(f"v{k}", draw.randint(1, 6)) for k in range(2 * stages)]
    operators = []
    for k in range(stages):
        inputs = (2 * k - 2,) if k else ()
        seconds, temporary = float(draw.randint(1, 5)), draw.choice((0, 0, 2))
        again = draw.random() < 0.9
        outputs = (2 * k, 2 * k + 1)
        operators.append(Operator(f"f{k}", seconds, inputs, outputs, temporary, again))
    gradient = 2 * stages - 2
    results = []
    for k in reversed(range(stages)):
        values.append(Value(f"d{k}", draw.randint(1, 6)))
        outputs = [len(values) - 1]
        if draw.random() < 0.3:
            values.append(Value(f"w{k}", draw.randint(1, 3)))
            outputs.append(len(values) - 1)
            results.append(len(values) - 1)
        inputs = {gradient, 2 * k + 1} | ({2 * k - 2} if k else set())
        seconds, temporary = float(draw.randint(1, 9)), draw.choice((0, 0, 2))
        operators.append(
            Operator(f"b{k}", seconds, tuple(sorted(inputs)), tuple(outputs), temporary)
        )
        gradient = outputs[0]
    pairs = tuple((k, 2 * stages - 1 - k) for k in range(stages))
    order = tuple(range(2 * stages))
    return RematGraph(tuple(operators), tuple(values), order, frozenset(results), pairs)


def residual_chain(seed: int, blocks: int) -> RematGraph:
    """Returns identical residual blocks of a cheap large and an expensive small operator, then
    their backward operators."""
    draw = random.Random(seed)
    cheap, dear = float(draw.randint(1, 2)), float(draw.randint(8, 12))
    large, small = draw.randint(12, 20), draw.randint(4, 6)
    edges: list[tuple[int, int]] = []
    seconds, sizes = [1.0], [small]
    for _ in range(blocks):
        begin = len(seconds) - 1
        edges += [(begin, begin + 1), (begin + 1, begin + 2), (begin, begin + 3)]
        edges += [(begin + 2, begin + 3)]
        seconds += [cheap, dear, 1.0]
        sizes += [large, small, small]
    return with_backward(seconds, sizes, edges)


def random_training_graph(seed: int, forward: int) -> RematGraph:
    """Returns a chain with random skip connections, some of them long, then its backward
    operators."""
    draw = random.Random(seed)
    edges = [(k, k + 1) for k in range(forward - 1)]
    edges += [(a, b) for b in range(2, forward) for a in range(b - 1) if draw.random() < 0.12]
    seconds = [float(draw.randint(1, 9)) for _ in range(forward)]
    return with_backward(seconds, [draw.randint(2, 9) for _ in range(forward)], edges)


def with_backward(
    seconds: list[float], sizes: list[int], edges: list[tuple[int, int]]
) -> RematGraph:
    """Returns forward operators, then backward operators that read gradients and the inputs of
    their forward operators."""
    seconds, sizes, edges = list(seconds), list(sizes), list(edges)
    forward = len(seconds)
    readers = {k: [r for w, r in edges if w == k] for k in range(forward)}
    writers = {k: [w for w, r in edges if r == k] for k in range(forward)}
    for k in reversed(range(forward)):
        backward = 2 * forward - 1 - k
        gradients = [2 * forward - 1 - r for r in readers[k]] or [k]
        edges += [(w, backward) for w in dict.fromkeys((*gradients, *writers[k]))]
        seconds.append(2 * seconds[k])
        sizes.append(max([sizes[w] for w in writers[k]], default=sizes[k]))
    pairs = tuple((k, 2 * forward - 1 - k) for k in range(forward))
    return single_output_graph(seconds, sizes, edges, backward_of=pairs)


def write_node_link(graph: RematGraph, path: Path) -> None:
    """Writes a graph whose operators write one value each, as networkx does."""
    nodes = [
        {
            "id": index,
            "name": operator.name,
            "duration": operator.compute_seconds,
            "out_cost": graph.values[operator.outputs[0]].size_bytes,
        }
        for index, operator in enumerate(graph.operators)
    ]
    links = [
        {"source": writer, "target": reader}
        for reader in range(len(graph.operators))
        for writer in graph.predecessors(reader)
    ]
    results = [graph.producer[value] for value in sorted(graph.results)]
    about = {"order": list(graph.order), "results": results}
    path.write_text(json.dumps({"graph": about, "nodes": nodes, "links": links}))
