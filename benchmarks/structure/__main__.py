"""`python -m benchmarks.structure [folder]` draws the pictures of `docs/extend/architecture.md`."""

import sys
from pathlib import Path

import jax

from benchmarks.structure.budget import record
from benchmarks.structure.imports import ROOT
from benchmarks.structure.picture import draw_budget, draw_rooms, upward


def main() -> int:
    """Draws the pictures. Returns 1 if the memory budget is passed upward."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    draw_rooms(folder / "rooms.svg")
    passes = record()
    draw_budget(passes, folder / "budget.svg")
    for sender, receiver in upward(passes):
        print(f"upward: {sender} passes the memory budget to {receiver}")
    return bool(upward(passes))


if __name__ == "__main__":
    sys.exit(main())
