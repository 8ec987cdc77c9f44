"""Prints one drawn model; `--out=FILE.py` writes a file for `kiwi plan` and `kiwi deviation`.

python -m benchmarks.sampled.show --seed=20261129 --index=1002 --out=experts.py
kiwi deviation experts.py:train_step --mesh 1 --profile v5e --donate 0 --reduce
"""

from pathlib import Path

from absl import app, flags

from benchmarks.sampled.models import draw_model

_SEED = flags.DEFINE_integer("seed", 20261129, "Of the model.")
_INDEX = flags.DEFINE_integer("index", 0, "Of the model.")
_OUT = flags.DEFINE_string("out", "", "A file to write.")

_FILE = '''"""{description}"""

from benchmarks.sampled.models import draw_model

_model = draw_model({seed}, {index})
train_step = _model.make_step()


def make_args():
    return _model.state, _model.batch
'''


def main(_: list[str]) -> None:
    """Prints the model, and writes the file of `--out`."""
    model = draw_model(_SEED.value, _INDEX.value)
    print(model)
    if _OUT.value:
        text = _FILE.format(description=model, seed=model.seed, index=model.index)
        Path(_OUT.value).write_text(text)


if __name__ == "__main__":
    app.run(main)
