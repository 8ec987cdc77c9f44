"""What adapters of frameworks share: their modules, devices that need not be attached, and the
planned step."""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from kiwi.api import PlannedFunction
from kiwi.errors import InvalidArgumentError
from kiwi.hlo.checkpoint_names import checkpoints_left_out
from kiwi.mesh.shipped import find_table
from kiwi.mesh.topology import Topology
from kiwi.messages import topics
from kiwi.options import Options
from kiwi.xla.tpu.compiler import compile_only_devices


@functools.cache
def described_devices(profile: str, topology: str, num_slices: int = 1) -> tuple[Any, ...]:
    """The devices of a topology. Nothing can run on them.

    **Raises:** `InvalidArgumentError` if the profile has no topologies.
    """
    hardware = find_table(profile).hardware
    if hardware.interconnect is None:
        raise InvalidArgumentError(
            f"The profile {profile!r} has no topologies.",
            topic=topics.RECIPE,
            suggestion="A profile of chips in slices, such as v5e; or no topology, for the devices "
            "that jax has.",
        )
    slices = Topology.parse(topology, num_slices)
    return tuple(compile_only_devices(hardware.interconnect, slices))


@contextlib.contextmanager
def devices_are(devices: Any) -> Iterator[None]:
    """A context manager in which JAX has these devices: an array of them, as a mesh has it.

    Models ask for the devices to choose kernels and to decide whether to constrain activations.
    """
    listed, names = list(devices.flat), ("devices", "local_devices", "device_count")
    before = {name: getattr(jax, name) for name in names}
    named: Any = lambda name, value: (  # noqa: E731
        lambda *args, **options: before[name](*args, **options) if args or options else value
    )
    try:
        jax.devices, jax.local_devices = named("devices", listed), named("local_devices", listed)
        jax.device_count = named("device_count", len(listed))
        yield
    finally:
        for name, function in before.items():
            setattr(jax, name, function)


def unattached(suggestion: str) -> InvalidArgumentError:
    """Returns the error for a trainer that is asked to train on devices that are not attached."""
    return InvalidArgumentError(
        "A trainer cannot train on devices that are not attached.",
        topic=topics.RECIPE,
        suggestion=f"plan() plans for them; to train, {suggestion}.",
    )


def imported(framework: str, names: Mapping[str, str], suggestion: str) -> Any:
    """Returns a class whose attributes are a framework's modules.

    - `names`: by attribute, the name of a module.

    **Raises:** `InvalidArgumentError` if a module cannot be imported.
    """
    try:
        modules = {name: importlib.import_module(module) for name, module in names.items()}
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            f"{framework} cannot be imported: {error}.",
            topic=topics.RECIPE,
            suggestion=suggestion,
        ) from error
    return type("Modules", (), modules)


def planned_step(function: Callable[..., Any], options: Mapping[str, Any]) -> PlannedFunction:
    """A trainer's step to plan. Its `jax.checkpoint`s are left out, unless the options ask for
    them: the plan itself decides what is recomputed."""
    keeps = options.get("respect_user_checkpoint") or options.get("granularity") == "names"

    @functools.wraps(function)
    def saving(*args: Any) -> Any:
        with checkpoints_left_out():
            return function(*args)

    return PlannedFunction(function if keeps else saving, Options(**options))
