"""Functions that make one kind of collective each, for tests that compare prices."""

from kiwi.mesh import collective


def all_gather(mesh, axes, full_bytes):
    return collective("all-gather", mesh, axes, full_bytes)


def all_reduce(mesh, axes, local_bytes):
    return collective("all-reduce", mesh, axes, local_bytes)


def reduce_scatter(mesh, axes, full_bytes):
    return collective("reduce-scatter", mesh, axes, full_bytes)


def all_to_all(mesh, axes, local_bytes):
    return collective("all-to-all", mesh, axes, local_bytes)


def collective_permute(mesh, axes, local_bytes):
    return collective("collective-permute", mesh, axes, local_bytes)
