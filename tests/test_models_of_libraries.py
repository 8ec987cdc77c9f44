"""The benchmark of models of libraries. Libraries that are not installed are skipped."""

import importlib.util

import pytest

from benchmarks.models_of_libraries import NAMES, OWN, TUNIX, example
from examples._compare import EXAMPLES

PACKAGES = {"haiku_gpt": "haiku", "numpyro_vae": "numpyro", "e3nn_molecules": "e3nn_jax"}


def test_every_model_has_a_library():
    assert set(NAMES) == {*EXAMPLES, *TUNIX, *OWN} and set(OWN) == set(PACKAGES)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries' own imports
@pytest.mark.parametrize("name", ["accumulation", *OWN, *TUNIX])
def test_models_have_the_form_of_examples(name):
    needed = PACKAGES.get(name, "flax" if name in EXAMPLES else "qwix")
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    found = example(name)
    config = found.SIZES["tiny"]
    assert callable(found.make_train_step(config))
    assert found.make_state(config) and found.make_batch(config)
