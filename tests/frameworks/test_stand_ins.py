"""Empty modules for packages that are imported but not used."""

import importlib
import sys

from kiwi.frameworks import stand_ins


def test_only_missing_packages_get_one(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    assert stand_ins.install(["numpy", "no_such_package_of_data"]) == ("no_such_package_of_data",)
    module = importlib.import_module("no_such_package_of_data.inner")
    assert module.Reader("file").__class__.__name__ == "Reader"
    assert module.__version__ == "0"
    assert module.Reader | None  # In an annotation.
    assert "numpy" not in type(importlib.import_module("numpy")).__name__
    for name in [name for name in sys.modules if name.startswith("no_such_package_of_data")]:
        del sys.modules[name]
