"""Published memory, rebuilt: the figures of XLA:TPU and Kiwi for steps that were run, or refused,
elsewhere.

- llama2-7b on v5e, sharded over 256 chips, one sequence of 4,096 tokens each, results of matmuls
  kept: 14 GB of a chip's 16 (axlearn, `fuji.py`).
- MaxText's `52b.sh` on v4, sharded over the 192 chips of each slice, 7 sequences of 2,048 tokens
  each, nothing kept: 33.27 GiB of 30.75, refused by the compiler. With the logits tiled by 8 and
  flash attention it fits (AI-Hypercomputer/maxtext, pull request 4117). Settings that the script
  leaves open are those of `base.yml` at that time: SwiGLU, heads of 128, a vocabulary of 32,000.

One slice is rebuilt; between slices, the batch is divided. Two steps are not rebuilt: llama2-70b
with results of matmuls on the host, which no plan can be asked for, and deepseek2-16b, whose
experts are kernels for grouped matmuls over sorted tokens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from jax.sharding import PartitionSpec

from benchmarks.tpu.book import Book, Row
from benchmarks.tpu.published_models import Decoder, parameter_count, shardings, training_step
from benchmarks.tpu.verdict import verdict
from examples._common import Specs
from examples.baselines import Baseline, baseline_step, estimate_baseline
from kiwi.mesh import DeviceMesh
from kiwi.xla.compilers import compile_for

_AXIS = ("fsdp",)


@dataclass(frozen=True)
class Published:
    """A step that others have measured.

    - `batch`, `sequence`: the number of sequences of one device, and of their tokens.
    - `said`: the published memory.
    - `ran`: whether the step ran.
    """

    decoder: Decoder
    profile: str
    topology: str
    devices: int
    batch: int
    sequence: int
    said: str
    ran: bool


_LLAMA = Decoder(32, 4096, 32, 128, 11008, 32000, gated=True, kept="matmuls", queries=8)
_OF_52B = Decoder(32, 12288, 32, 128, 49152, 32000, gated=True, kept="nothing")
_REFUSED = Published(_OF_52B, "v4", "4x4x12", 192, 7, 2048, "33.27 GiB of 30.75", ran=False)

STEPS: Mapping[str, Published] = {
    "llama2-7b": Published(_LLAMA, "v5e", "16x16", 256, 1, 4096, "14 GB of 16", ran=True),
    "maxtext-52b": _REFUSED,
    "maxtext-52b-tiled": replace(
        _REFUSED, decoder=replace(_OF_52B, queries=8, tiles=8), said="fits", ran=True
    ),
}


def measure(book: Book) -> None:
    """Measures the missing rows."""
    for name, published in STEPS.items():
        book.row(name, lambda published=published: _row(published))


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the lines of the table, with one row for each step."""
    yield "| step | chips | published | XLA:TPU GiB | granted GiB | XLA:TPU | Kiwi predicts GiB |"
    yield "| --- | --- | --- | ---: | ---: | --- | ---: |"
    for name, row in rows.items():
        sizes = [f"{row[key] / 2**30:.2f}" for key in ("compiled_peak_bytes", "memory_bytes")]
        says = "takes it" if row["is_taken"] else "refuses it"
        predicted = f"{row['predicted_peak_bytes'] / 2**30:.2f}"
        cells = [name, f"{row['devices']} {row['profile']}", row["published"], *sizes, says]
        yield f"| {' | '.join([*cells, predicted])} |"


def _row(published: Published) -> Row:
    p = published
    batch = p.batch * p.devices
    step = training_step(p.decoder, batch, p.sequence, (p.devices,), _AXIS)
    specs = Specs(shardings(step.state, _AXIS, p.devices), PartitionSpec(_AXIS))
    baseline = Baseline("published", step.function, specs)
    mesh = DeviceMesh.create((p.devices,), p.profile, _AXIS, p.topology)
    plain = baseline_step(baseline, step.state, step.batch, mesh)
    compiled, answer = compile_for("tpu", plain), verdict(plain)
    estimate = estimate_baseline(
        baseline,
        step.state,
        step.batch,
        mesh_shape=(p.devices,),
        profile=p.profile,
        axis_names=_AXIS,
    )
    return {
        "published": p.said,
        "ran": p.ran,
        "profile": p.profile,
        "devices": p.devices,
        "parameters": parameter_count(p.decoder),
        "memory_bytes": mesh.hardware.memory_bytes,
        "compiled_peak_bytes": compiled.peak_bytes,
        "compile_seconds": round(compiled.compile_seconds, 1),
        "is_taken": answer.is_taken,
        "said": answer.said,
        "predicted_peak_bytes": estimate.peak_bytes,
    }
