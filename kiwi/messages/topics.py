"""All topics of messages, with their codes, titles, causes and remedies.

The letter of a code is a key of `SECTIONS`. A new topic takes the next free number of its letter.
`python -m kiwi.messages` writes the reference pages from this module.
"""

from kiwi.messages.topic import Level, Topic

SECTIONS = {
    "A": "Arguments and options",
    "C": "Searches of configurations and sweeps",
    "D": "Devices and meshes",
    "E": "Explanations, exports and reports",
    "F": "Files that Kiwi reads and writes",
    "H": "Hardware profiles and measurements",
    "K": "Kernels",
    "L": "The user's file on the command line",
    "M": "Memory and budgets",
    "O": "Planners and solvers",
    "P": "Saved plans",
    "S": "Shardings, pins and hints",
    "T": "Tracing the function",
    "V": "The compile check",
}
"""The title of each section of the reference pages, by the letter of its codes."""


def _error(code: str, title: str, *, cause: str, remedy: str) -> Topic:
    return Topic(code, title, cause, remedy, Level.ERROR)


def _warning(code: str, title: str, *, cause: str, remedy: str) -> Topic:
    return Topic(code, title, cause, remedy, Level.WARNING)


def _note(code: str, title: str, *, cause: str, remedy: str) -> Topic:
    return Topic(code, title, cause, remedy, Level.NOTE)


# Arguments and options.

ARGUMENT = _error(
    "KIWI-A001",
    "An argument cannot be used",
    cause="The value has no meaning for this parameter.",
    remedy="Pass a value that the parameter's documentation lists.",
)

UNKNOWN_NAME = _error(
    "KIWI-A002",
    "A name is not among the known ones",
    cause="The name is misspelt, or belongs to another version of Kiwi.",
    remedy="Use one of the names that the message lists.",
)

STATIC_AND_DONATED = _error(
    "KIWI-A003",
    "An argument is both static and donated",
    cause="A static argument is part of the compiled program and has no buffer to donate.",
    remedy="Name the argument in only one of the two options.",
)

NO_SUCH_POSITION = _error(
    "KIWI-A004",
    "An argument number does not exist",
    cause="static_argnums or donate_argnums names a position beyond the function's parameters.",
    remedy="Count positional arguments from 0.",
)

STATIC_UNHASHABLE = _error(
    "KIWI-A005",
    "A static argument cannot be hashed",
    cause="Kiwi looks plans up by the values of static arguments, and hashes them for that.",
    remedy="Pass hashable static arguments, as in jax.jit: a tuple in place of a list, a frozen "
    "dataclass in place of a dictionary.",
)

OUT_OF_RANGE = _error(
    "KIWI-A006",
    "A number is out of its range",
    cause="The value is zero, negative, too large, or no number.",
    remedy="Pass a number in the range that the message or the parameter's documentation names.",
)

RULE_WITHOUT_WITNESS = _error(
    "KIWI-A007",
    "A rule has no witness",
    cause="No program shows this rule; its `witness` field is a sentence that says why.",
    remedy="Use one of `witnessed_rules`.",
)

PIPELINE = _error(
    "KIWI-A008",
    "The numbers of a pipeline do not fit together",
    cause="A pipeline cuts the layers into stages, and the samples into microbatches, of equal "
    "size.",
    remedy="Choose stages and rounds whose product divides the number of layers, and microbatches "
    "that divide the samples. With several rounds, use at least as many microbatches as stages.",
)

PIPELINE_RESULTS = _error(
    "KIWI-A009",
    "The body of a pipeline returns a result of each layer",
    cause="The layers of one batch run at different times and on different devices, so their "
    "results cannot be stacked.",
    remedy="Return x, None from the body; or use stages=1.",
)

NO_SUCH_PARAMETER = _error(
    "KIWI-A010",
    "An argument name does not exist",
    cause="static_argnames or donate_argnames names no parameter of the function.",
    remedy="Use the names of the function's parameters, as in jax.jit.",
)

NO_SUCH_OPTION_NAME = _error(
    "KIWI-A011",
    "Neither an option nor an argument of the function has this name",
    cause="kiwi.plan passes keywords that are not options on to the function, and the function "
    "has no such parameter.",
    remedy="Use the name of an option, or of a parameter of the function.",
)

UNKNOWN_RESIDENCY = _error(
    "KIWI-A012",
    "A name has an unknown residency",
    cause="A policy by names keeps a value on the device, recomputes it, or offloads it.",
    remedy='Use "device", "remat" or "offload".',
)

NO_CHECKPOINTED_NAMES = _error(
    "KIWI-A013",
    "No name is inside of a jax.checkpoint",
    cause="A policy by names is a policy of jax.checkpoint, and decides about values inside of it "
    "that jax.ad_checkpoint.checkpoint_name names.",
    remedy="Wrap each layer in jax.checkpoint and name values in it; or use "
    'granularity="operators".',
)

RECIPE = _error(
    "KIWI-A014",
    "A recipe is invalid",
    cause="A part of the recipe is missing, or contradicts another part.",
    remedy="Read the documentation of kiwi.recipes.Recipe: it lists what each part may be.",
)


# Searches of configurations and sweeps.

OTHER_SEARCH = _error(
    "KIWI-C001",
    "A folder holds another search",
    cause="A search with other options wrote the folder.",
    remedy="Use another folder; or pass the options of that search, which resumes it.",
)

MISSING_PARAMETER = _error(
    "KIWI-C002",
    "make_step lacks a parameter that is searched over",
    cause="The search passes the values that it chooses to make_step by keyword.",
    remedy="Give make_step the parameter, or leave the option out.",
)

MISSING_OPTION = _error(
    "KIWI-C003",
    "make_step needs a parameter that the search has no values for",
    cause="The parameter has no default, and its option is not given.",
    remedy="Pass values for the option, or give the parameter a default.",
)

NO_BATCH_FITS = _error(
    "KIWI-C004",
    "Not even the smallest batch fits",
    cause="The parameters and the optimiser state alone may exceed the budget.",
    remedy="Use a larger memory_budget or mesh.",
)

EVERY_BATCH_FITS = _error(
    "KIWI-C005",
    "Memory does not grow with the batch",
    cause="The step's memory does not grow with batch_size.",
    remedy="Let make_step derive the arguments, or their shapes, from batch_size.",
)

NO_CONFIGURATION = _error(
    "KIWI-C006",
    "No configuration has a plan",
    cause="Each configuration was refused; the message gives the reasons.",
    remedy="Use more devices, a larger memory_budget, smaller batch_sizes or more microbatches.",
)

UNPLANNED_CONFIGURATION = _error(
    "KIWI-C007",
    "A configuration has no plan",
    cause="Its step was refused, or its bound was worse than a plan of another configuration.",
    remedy="Choose another row of the table, or search with plans_all=True.",
)

NO_PRICE = _error(
    "KIWI-C008",
    "A profile has no price",
    cause="The objective is a cost in money, and Kiwi knows no prices.",
    remedy="Pass the price of one device for an hour, for example prices={'h100-sxm': 2.5}.",
)

SAME_PROFILE_NAME = _error(
    "KIWI-C009",
    "Two profiles have the same name",
    cause="The table identifies its rows by the names of profiles.",
    remedy="Rename one of them: dataclasses.replace(hardware, name=...).",
)

NO_DEVICES = _error(
    "KIWI-C010",
    "There are no devices to search",
    cause="Neither devices nor meshes are given.",
    remedy="Pass numbers of devices, devices=(8, 16), or meshes=((2, 4),).",
)

NOT_A_MAKER = _error(
    "KIWI-C011",
    "make_step is no function",
    cause="A search calls make_step with the values that it chooses.",
    remedy="Pass a function: def make_step(batch_size, microbatches): return function, args",
)

UNSEARCHED_PARAMETER = _error(
    "KIWI-C012",
    "make_step needs a parameter that no search chooses",
    cause="A search chooses batch_size, microbatches and stages only, and another parameter has "
    "no default.",
    remedy="Fix all other parameters with functools.partial.",
)

NOT_A_STEP = _error(
    "KIWI-C013",
    "make_step did not return a step",
    cause="A step is a function and the tuple of its arguments.",
    remedy="Return both: return train_step, (state, batch)",
)

STEP_REFUSED = _error(
    "KIWI-C014",
    "make_step raised an error for a configuration",
    cause="make_step does not work with these parameters.",
    remedy="Search values for which make_step works; the message contains its error.",
)

NOT_SENDABLE = _error(
    "KIWI-C015",
    "A step cannot be sent to other processes",
    cause="The step is a lambda or a nested function, and Python cannot send either to another "
    "process.",
    remedy='Pass a function of a module, "FILE.py:make_step", or jobs=1.',
)


# Devices and meshes.

MESH = _error(
    "KIWI-D001",
    "The shape of a mesh is invalid",
    cause="A mesh is a sequence of positive whole numbers, one per axis.",
    remedy="Pass for example mesh_shape=(2, 4) for 2 times 4 devices.",
)

TOO_MANY_AXES = _error(
    "KIWI-D002",
    "A mesh has too many axes",
    cause="The number of layouts of a tensor grows with the factorial of the number of axes.",
    remedy="Merge axes, for example (2, 2, 2, 2) into (4, 4).",
)

MESH_OF_CLUSTER = _error(
    "KIWI-D003",
    "A mesh does not hold the devices of a cluster",
    cause="The product of the shape differs from the number of devices of the cluster.",
    remedy="Choose a shape whose product is the number of devices, or give none.",
)

AXIS_NAMES = _error(
    "KIWI-D004",
    "The names of the axes do not fit the mesh",
    cause="Each axis needs one name; names are strings and differ.",
    remedy='Pass for example axis_names=("x", "y") for a mesh of two axes.',
)

SLICES = _error(
    "KIWI-D005",
    "The devices do not make equal slices",
    cause="Each slice of a TPU has the same number of whole chips.",
    remedy="Choose a mesh_shape with equally many whole chips per slice, or another num_slices.",
)

TOPOLOGY_SIZE = _error(
    "KIWI-D006",
    "The topology has another number of devices than the mesh",
    cause="The size of the mesh must be the product of the topology's extents, the devices per "
    "chip and the number of slices.",
    remedy="Choose a mesh_shape with as many devices, or give no topology.",
)

NOT_A_TPU = _error(
    "KIWI-D007",
    "A topology is given for hardware that is no TPU",
    cause="Only TPUs are wired as meshes of chips.",
    remedy="Use profile='v5e' or another TPU, or give no topology.",
)

TOPOLOGY = _error(
    "KIWI-D008",
    "A topology cannot be read",
    cause="A topology gives the number of chips along each dimension of a slice.",
    remedy='Write it as in topology="2x4".',
)

MESH_PARTS = _error(
    "KIWI-D009",
    "The parts of a DeviceMesh do not fit together",
    cause="A DeviceMesh that is made by hand needs one link per axis, and each device once.",
    remedy="Use DeviceMesh.create, which picks links and order.",
)

NOT_ENOUGH_DEVICES = _error(
    "KIWI-D010",
    "There are fewer devices than the mesh has",
    cause="The plan was made for a larger machine than this process sees.",
    remedy="Use a smaller mesh_shape, or virtual CPU devices: "
    'jax.config.update("jax_num_cpu_devices", n) before the first use of jax.',
)

TWO_MESHES = _error(
    "KIWI-D011",
    "Two meshes are given",
    cause="mesh= already has a shape and axis names.",
    remedy="Pass either mesh=, or mesh_shape= with axis_names=.",
)

NO_BACKEND = _error(
    "KIWI-D013",
    "jax cannot start its devices",
    cause="JAX_PLATFORMS names a platform that this machine or installation lacks, or a plugin is "
    "of another version than jax.",
    remedy="Give --mesh with the shape to plan for, which needs no devices; or unset "
    "JAX_PLATFORMS.",
)

COST_OF_NOTHING = _error(
    "KIWI-D012",
    "A cost is asked for that does not exist",
    cause="A collective has a known kind, distinct axes of the mesh and a size of 0 or more; a "
    "tensor has sizes of 0 or more.",
    remedy="Ask for an all-reduce, all-gather, reduce-scatter, all-to-all or collective-permute "
    "over distinct axes of the mesh.",
)


# Explanations, exports and reports.

NO_SUCH_OPERATOR = _error(
    "KIWI-E001",
    "No operator has this name",
    cause="Kiwi finds operators by index, opcode, name stack or source line of the planned "
    "function.",
    remedy="Look the operator up in plan.decisions, or in the table of operators of the report.",
)

NO_SUCH_OPTION = _error(
    "KIWI-E002",
    "An operator has no such option",
    cause="Kiwi leaves out options that another option beats in time and memory.",
    remedy="Choose a layout that the message lists, or a neighbouring operator.",
)

NOTHING_DEVIATES = _error(
    "KIWI-E003",
    "Estimate and compiled program agree",
    cause="There is no deviation to reduce.",
    remedy="Choose another quantity: memory, time or collectives.",
)

NOT_PRINTABLE = _error(
    "KIWI-E004",
    "A part of a step cannot be written as Python",
    cause="The part has a parameter, a primitive or captured arrays that no source text stands "
    "for.",
    remedy="Plan the piece itself, as kiwi.deviation.reduce returns it.",
)

LOSS_NOT_FOUND = _error(
    "KIWI-E005",
    "The loss is not found in the planned step",
    cause="The step differentiates another function, or the same function for other shapes.",
    remedy="Pass the function that the step gives to jax.grad, and its arguments.",
)

NO_LOGICAL_NAMES = _error(
    "KIWI-E006",
    "No argument names its dimensions",
    cause="Plain arrays carry no names of dimensions.",
    remedy="Plan with boxed parameters, or pass logical_axes=.",
)

LOGICAL_AXES = _error(
    "KIWI-E007",
    "logical_axes does not fit the arguments",
    cause="The pytree of logical_axes is no prefix of the pytree of the planned arguments.",
    remedy="Pass a pytree prefix of the arguments; a tuple of names, or None, is a leaf.",
)

PACKAGE_MISSING = _error(
    "KIWI-E008",
    "An optional package is not installed",
    cause="A plain installation leaves out packages that only this feature needs.",
    remedy="Run pip install 'kiwi-planner[report]'.",
)


# Files that Kiwi reads and writes.

UNWRITABLE = _error(
    "KIWI-F001",
    "A file cannot be written",
    cause="The operating system refuses to write the file; the message ends with its reason.",
    remedy="Use a path in a folder that exists, may be written to and has space left.",
)

UNREADABLE = _error(
    "KIWI-F002",
    "A file cannot be read",
    cause="The path is wrong, or the file may not be read.",
    remedy="Use the path of a saved file.",
)

FOREIGN_FILE = _error(
    "KIWI-F003",
    "A file is of another kind",
    cause="Kiwi did not write the file, or the file holds another kind of Kiwi's data.",
    remedy="Pass the kind of file that the command or function asks for.",
)

DAMAGED_FILE = _error(
    "KIWI-F004",
    "A file is truncated or corrupt",
    cause="Writing was interrupted, or the file was changed afterwards.",
    remedy="Make the file again.",
)

INVALID_FILE = _error(
    "KIWI-F005",
    "A part of a file is not understood",
    cause="The file was edited by hand, or written by a development version.",
    remedy="Make the file again.",
)

NEWER_FILE = _error(
    "KIWI-F006",
    "A file was saved by a newer Kiwi",
    cause="The installed Kiwi cannot read the format of the newer one.",
    remedy="Update Kiwi, or make the file again with this one.",
)

OLDER_FILE = _error(
    "KIWI-F007",
    "A file was saved by an older Kiwi",
    cause="The file was saved by a Kiwi before its first release.",
    remedy="Make the file again.",
)

ALTERED_FILE = _error(
    "KIWI-F008",
    "A plan file was altered after it was saved",
    cause="A disk error, a merge or an edit by hand changed the file.",
    remedy="Save the plan again. To change a plan, use plan.what_if.",
)

PLAIN_DATA = _error(
    "KIWI-F009",
    "Data does not have the form of its kind",
    cause="A field is missing, unknown, or of another type.",
    remedy="Compare the field that the message names with a saved file.",
)

MACHINE_LIMIT = _error(
    "KIWI-F010",
    "The operating system refuses what planning needs",
    cause="A disk is full, a folder may not be written to, or a limit of the machine is reached.",
    remedy="Free disk space or memory, or set TMPDIR to a folder with space; `ulimit -a` shows the "
    "limits of a process.",
)


# Hardware profiles and measurements.

PROFILE = _error(
    "KIWI-H001",
    "A hardware profile is not known",
    cause="The name is not in the catalogue, and is no file that ends in .json.",
    remedy="Run `kiwi hardware`, which lists all profiles.",
)

HARDWARE = _error(
    "KIWI-H002",
    "A hardware description has a figure that no device has",
    cause="Rates, bandwidths and sizes must be positive and efficiencies at most 1, and float32 "
    "and float64 need rates.",
    remedy="Correct the figure that the message names.",
)

MEASUREMENT = _error(
    "KIWI-H003",
    "A table of measurements has an invalid entry",
    cause="The entry was written by hand, or two tables were joined.",
    remedy="Measure again with `kiwi profile`, or drop the entry.",
)

CLUSTER = _error(
    "KIWI-H004",
    "The connections of a cluster are not known",
    cause="A pair of devices was not measured, or the matrices do not have one row and column per "
    "device.",
    remedy="Measure again with `kiwi cluster`.",
)

PROFILE_FILE = _error(
    "KIWI-H005",
    "A file of measurements cannot be used",
    cause="The file cannot be read, or belongs to another machine.",
    remedy="Record it again with `kiwi profile`.",
)

OTHER_MACHINE = _error(
    "KIWI-H006",
    "A table was recorded on another machine or mesh",
    cause="Measurements of two machines, versions or meshes do not belong in one table.",
    remedy="Give --out another file, or measure on the machine and mesh of the first recording.",
)

TABLE_NAME = _error(
    "KIWI-H007",
    "The name of a table does not end in .json",
    cause="--profile takes a text without that ending for a name of the catalogue.",
    remedy="Give --out a name that ends in .json.",
)

NO_STATED_TIMES = _error(
    "KIWI-H008",
    "A compiler states no times",
    cause="XLA:TPU and XLA:GPU estimate the times of kernels, for the devices that they have "
    "tables of; XLA:CPU estimates none.",
    remedy="Leave compiler= out, which measures the attached devices.",
)

NOTHING_TO_MEASURE = _error(
    "KIWI-H009",
    "There is nothing to measure",
    cause="A connection is measured between two devices, with a small and a larger message.",
    remedy="Measure at least two devices, more than 1024 bytes, and one repetition. For virtual "
    'CPU devices: jax.config.update("jax_num_cpu_devices", 8).',
)

COLLECTIVES_UNMEASURED = _note(
    "KIWI-H101",
    "The profile has no collectives over this many devices",
    cause="The table was recorded on another mesh.",
    remedy="Record a table on a mesh with these axes (`kiwi profile`); until then latency and "
    "bandwidth price the collectives.",
)

OPERATORS_UNMEASURED = _note(
    "KIWI-H102",
    "The profile lacks matmuls or convolutions of the step",
    cause="The table was recorded for another function.",
    remedy="Record a table for this function (`kiwi profile`); until then the roofline prices the "
    "operators.",
)


# Kernels.

RULE_UNREADABLE = _error(
    "KIWI-K001",
    "A sharding rule cannot be read",
    cause="A rule names the dimensions of all operands, then an arrow, then the dimensions of all "
    "results.",
    remedy='Write the rule as in "b s h d, b t h d, b t h d -> b s h d".',
)

RULE_MISFIT = _error(
    "KIWI-K002",
    "A sharding rule does not fit a call",
    cause="The call has other operands, results, ranks or sizes than the rule names.",
    remedy="Give each dimension one word, and equal sizes the same word; register one rule for "
    "each signature of the function.",
)

KERNEL_NAME = _error(
    "KIWI-K003",
    "A kernel's name is not a function's name",
    cause="Kiwi recognises a kernel by the module and the name of the function that calls it.",
    remedy='Give module and name of the function: "my_lib.attention.fwd".',
)

KERNEL_RULE = _error(
    "KIWI-K004",
    "A kernel has no rule, or its rule lacks a factor",
    cause="need_replication_factors names words that are not in the rule, or there is no rule at "
    "all.",
    remedy="Give a rule, and in need_replication_factors only words of the rule.",
)

KERNEL_SHARE = _error(
    "KIWI-K005",
    "A kernel's share of work is out of range",
    cause="The share is the part of the dense computation that the kernel carries out.",
    remedy="Give a number above 0 and at most 1, for example 0.5 with a causal mask.",
)

COSTLY_KERNEL = _warning(
    "KIWI-K101",
    "A kernel without a sharding rule takes much of the step",
    cause="Every device runs the whole kernel.",
    remedy="Give its function a sharding rule with kiwi.register_kernel.",
)


# The user's file on the command line.

SPEC = _error(
    "KIWI-L001",
    "No function is named",
    cause="The command takes a file and a function, with a colon between them.",
    remedy="Write FILE.py:FUNCTION, for example train.py:step.",
)

NOT_CALLABLE = _error(
    "KIWI-L002",
    "The name is no function",
    cause="The file assigns something else to this name.",
    remedy="Use the name of a function of the file.",
)

NO_FILE = _error(
    "KIWI-L003",
    "The file does not exist",
    cause="The path is misspelt, or relative to another folder.",
    remedy="Use a path relative to the current folder.",
)

NOT_PYTHON = _error(
    "KIWI-L004",
    "The file is no Python file",
    cause="Its name does not end in .py.",
    remedy="Use a file that ends in .py.",
)

NO_ARGUMENTS_FUNCTION = _error(
    "KIWI-L005",
    "The file has no function that makes the arguments",
    cause="Kiwi takes the shapes to plan for from a function without parameters.",
    remedy="Add def make_args(): return state, batch  (jax.ShapeDtypeStructs are enough), or name "
    "another function with --args NAME.",
)

SYNTAX = _error(
    "KIWI-L006",
    "The file has a syntax error",
    cause="Python cannot compile the file.",
    remedy="Run `python FILE.py`, which shows the place.",
)

NO_SUCH_FUNCTION = _error(
    "KIWI-L007",
    "The file has no such function",
    cause="The name is misspelt, or the function is defined inside of another one.",
    remedy="Use one of the file's functions, or Class.method.",
)

MISSING_IMPORT = _error(
    "KIWI-L008",
    "The file imports a module that is not installed",
    cause="Kiwi runs the file to find the function, in the environment that Kiwi is installed in.",
    remedy="Install the module beside Kiwi; or run `python -m kiwi` with the Python of the file.",
)

FILE_EXITS = _error(
    "KIWI-L009",
    "The file ends the program when it is imported",
    cause="The file calls sys.exit, or parses arguments of a command line, at its top level.",
    remedy='Put the code that runs as a program behind `if __name__ == "__main__":`.',
)

FILE_RAISES = _error(
    "KIWI-L010",
    "The file raises an error when it is imported",
    cause="A statement at the top level of the file fails.",
    remedy="Run `python FILE.py`, or the command with --debug: both show the error with its "
    "traceback.",
)

ARGUMENTS_RAISE = _error(
    "KIWI-L011",
    "The function that makes the arguments fails",
    cause="The function raises an error or needs parameters, or its name is that of no function.",
    remedy="Name with --args a function without parameters that returns the arguments, or their "
    "shapes. --debug shows the traceback.",
)

NO_ARGUMENTS_RETURNED = _error(
    "KIWI-L013",
    "The function that makes the arguments returns None",
    cause="The function has no return statement, or one without a value.",
    remedy="Let it return the arguments: return state, batch  (jax.ShapeDtypeStructs are enough).",
)

ARGUMENTS_MISFIT = _error(
    "KIWI-L012",
    "The arguments are not the ones that the function takes",
    cause="The call has, or the function of --args returns, more, fewer or other arguments. With "
    "--args a tuple or a list holds several arguments, a dictionary holds arguments by keyword, "
    "and anything else is one argument.",
    remedy="Return state, batch  for def step(state, batch); return ((state, batch),) for one "
    "argument that is a tuple.",
)


# Memory and budgets.

BUDGET_TOO_SMALL = _error(
    "KIWI-M001",
    "No plan is predicted to fit the budget",
    cause="Arguments, results and the largest operator's operands need more than the budget.",
    remedy="Use a larger memory_budget or mesh, a smaller batch, or host_memory_budget=. `kiwi "
    "plan` names the smallest peak that it found.",
)

BUDGET_NOT_MET = _error(
    "KIWI-M002",
    "No compiled program met the budget",
    cause="In each plan that was compiled, the compiler holds more at once than the estimate says.",
    remedy="Use the budget that the message names; error.plan is the plan that came nearest.",
)

SIZE_UNREADABLE = _error(
    "KIWI-M003",
    "A memory size cannot be read",
    cause="A size is a number of bytes, or a number followed by B, KB, MB, GB, TB, KiB, MiB, GiB "
    "or TiB.",
    remedy='Write "16GiB" (2**30 bytes each) or "40GB" (10**9 bytes each).',
)

SIZE_NOT_POSITIVE = _error(
    "KIWI-M004",
    "A memory size is not positive",
    cause="A budget of zero bytes or less holds no argument.",
    remedy='Pass a number of bytes, or text such as "16GiB" or "40GB".',
)

SIZE_WITHOUT_UNIT = _error(
    "KIWI-M008",
    "A memory size has no unit",
    cause="A number without a unit is a number of bytes, and no step fits into so few.",
    remedy='Write the unit: "16GiB" or "40GB". A small number of bytes is text such as "4096B", or '
    "in Python an int.",
)

MEMORY_KIND = _error(
    "KIWI-M005",
    "A memory kind is not known",
    cause="Arguments lie in the device's memory or in the host's.",
    remedy='Use "device" or "pinned_host".',
)

NOT_ON_HOST = _error(
    "KIWI-M006",
    "An argument cannot lie in host memory",
    cause="jax cannot copy arrays of this type between host and device.",
    remedy="Leave the argument out of memory_kinds.",
)

OFFLOAD_WITHOUT_BUDGET = _error(
    "KIWI-M007",
    "Offloading is asked for without host memory",
    cause="Without a host budget Kiwi offloads nothing.",
    remedy='Pass the bytes that the devices of a host may share: host_memory_budget="64GiB".',
)

OVER_BUDGET = _warning(
    "KIWI-M101",
    "The compiled program is over the budget",
    cause="The compiler holds more at once than the estimate says. Another compiler checked the "
    "plan when it was made, or the plan was put on its function again.",
    remedy="Plan again with this compiler as verify=, or with a larger memory_budget.",
)

PEAKS_DIFFER = _note(
    "KIWI-M102",
    "Estimated and compiled peak differ by more than a quarter",
    cause="The compiler fuses, reorders or pads values in another way than predicted. In steps of "
    "a few KiB its constants outweigh the values.",
    remedy="Run `kiwi deviation`, which names the values. Kiwi checks the compiled peak against "
    "the budget, not the estimated one.",
)

COMPILER_RECOMPUTES = _note(
    "KIWI-M103",
    "The compiler recomputes instructions in addition to the plan",
    cause="XLA rematerialises where the program holds more than XLA's own memory limit.",
    remedy="Use a smaller memory_budget: then the plan itself recomputes, at prices that it knows.",
)

ARGUMENTS_ON_HOST = _note(
    "KIWI-M104",
    "The plan places arguments in host memory",
    cause="offload_arguments=True, and the step is faster or fits only with them there.",
    remedy="Place the training state by plan.in_shardings, which has the memory kinds. "
    "offload_arguments=False keeps arguments on the device.",
)

HOST_UNLIMITED = _note(
    "KIWI-M105",
    "Host memory is used without a limit",
    cause="The planner copies values to the host, and no host_memory_budget is given.",
    remedy="Pass host_memory_budget= with the bytes that the devices of a host may share.",
)

PLANNER_KEEPS_ON_DEVICE = _note(
    "KIWI-M106",
    "A host budget is given and the planner offloads nothing",
    cause="The planner's method does not decide about host memory.",
    remedy='Use planner="joint", or no host_memory_budget.',
)

NO_HOST_ON_TARGET = _note(
    "KIWI-M107",
    "A host budget is given and the target's programs have no host memory",
    cause="XLA:CPU has one memory, and drops copies between two memories.",
    remedy='Plan for a GPU or a TPU: profile=, with verify="auto" or None.',
)


# Planners and solvers.

PLANNER = _error(
    "KIWI-O001",
    "A planner is not known",
    cause="The name is misspelt, or its module was not imported.",
    remedy="Use one of the names that the message lists.",
)

SOLVER = _error(
    "KIWI-O002",
    "A solver is not known",
    cause="The name is misspelt.",
    remedy='Use solver="auto", or one of the names that the message lists.',
)

NO_PLAN_IN_TIME = _error(
    "KIWI-O003",
    "No plan was found in time",
    cause="The budget is close to the smallest possible one, or the time limit is short for the "
    "size of the step.",
    remedy='Use a larger memory_budget or mesh, effort="thorough", or a larger time_limit_seconds.',
)

PLANNER_TAKEN = _error(
    "KIWI-O004",
    "Two planners have the same name",
    cause="Another planner is registered under this name.",
    remedy="Use another name.",
)

NOT_A_PLANNER = _error(
    "KIWI-O005",
    "A planner is neither a name nor an object",
    cause="planner= takes a name or an instance of a planner class.",
    remedy='Pass planner="joint", or an object such as those of kiwi.literature.planners.',
)

ONE_DEVICE_PLANNER = _error(
    "KIWI-O006",
    "A planner plans for one device only",
    cause="The planner's method decides schedules and not shardings.",
    remedy='Use mesh_shape=(1,), or planner="joint", which also shards.',
)

LOOPS = _error(
    "KIWI-O007",
    "A planner cannot plan the bodies of loops",
    cause="The planner's schedules run every operator of a step in one sequence.",
    remedy='Use open_loops=False, which plans each loop as one operator, or planner="joint".',
)

NO_ATTENTION = _error(
    "KIWI-O008",
    "A step has no attention core",
    cause="The planner recomputes a softmax between two batched matrix products, and the step has "
    "none.",
    remedy='Use planner="joint", which finds values to recompute in any step.',
)

PROBLEM = _error(
    "KIWI-O009",
    "A problem for the solver does not fit together",
    cause="Costs, usages, intervals or edges contradict each other.",
    remedy="Correct the node or edge that the message names; the documentation of "
    "kiwi.solver.Problem defines each part.",
)

INSTANCE = _error(
    "KIWI-O010",
    "A file is no instance of the contest",
    cause="The document lacks a part, or a part has another size.",
    remedy="Pass a file of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism.",
)

SCHEDULE = _error(
    "KIWI-O011",
    "A schedule or a solution is not valid",
    cause="An operator runs before its inputs exist, or the schedule exceeds the memory limit.",
    remedy="Pass a schedule that a planner of Kiwi returns; if this is one, please report it.",
)

WARM_START = _error(
    "KIWI-O012",
    "A warm start has another length than the problem",
    cause="A warm start lists one option for each node of the problem.",
    remedy="Give one option index per node.",
)

SOLVER_MISSING = _error(
    "KIWI-O013",
    "A solver is not installed",
    cause="A plain installation has no commercial solver.",
    remedy="Run pip install 'kiwi-planner[gurobi]'.",
)

SOLVER_FAILED = _error(
    "KIWI-O014",
    "A solver failed or declined",
    cause="The solver does not take this model, its licence does not fit, or the problem is too "
    "large for it.",
    remedy='Use solver="auto".',
)

CLOCK_ENDED = _warning(
    "KIWI-O101",
    "The time limit ended the search",
    cause="time_limit_seconds passed before the search had done its work.",
    remedy='Use a larger time_limit_seconds, or effort="quick": the search then ends after the '
    "same amount of work each time. Until then another run may find another plan.",
)

INTERRUPTED = _warning(
    "KIWI-O102",
    "Ctrl-C ended the search",
    cause="The search was interrupted, and the best plan by then is returned.",
    remedy="Plan again for a better plan; --effort quick ends sooner.",
)

SOLVER_SAID = _note(
    "KIWI-O103",
    "The solver did something other than asked, or more",
    cause="HiGHS solved a small rest of the problem, or another solver stood in for the one that "
    "was asked for.",
    remedy="Nothing has to be done, unless a solver is missing: the note says which.",
)

EQUAL_LAYERS = _note(
    "KIWI-O104",
    "Equal layers have equal decisions",
    cause="Kiwi plans repeated layers of the program as one, if that costs less than 0.5 % of the "
    "step time.",
    remedy="Nothing has to be done. equal_layers=False lets the layers differ, at a longer search.",
)

NO_ROOM = _note(
    "KIWI-O105",
    "Collectives do not overlap with computation, for lack of memory",
    cause="No plan was found that has room for the buffers in flight and is faster with overlap.",
    remedy="Use a larger memory_budget, if communication is much of the step.",
)

NO_GAIN = _note(
    "KIWI-O106",
    "Collectives do not overlap with computation, as that is slower",
    cause="The compiler's schedule with overlap takes longer than the schedule that waits.",
    remedy="Nothing has to be done.",
)

FROM_SMALLER_BUDGET = _note(
    "KIWI-O107",
    "The plan was made for a smaller budget",
    cause="An earlier plan for a smaller budget has a faster program than the plan for this "
    "budget.",
    remedy="Nothing has to be done.",
)

POLICIES_PRICED = _note(
    "KIWI-O108",
    "The policy by names is the fastest of those that were priced",
    cause='granularity="names" prices policies one by one, and leaves out policies that a bound '
    "excludes.",
    remedy='Nothing has to be done; effort="thorough" prices more policies.',
)


# Saved plans.

PLAN_FILE = _error(
    "KIWI-P001",
    "A plan file cannot be used",
    cause="The file is missing, damaged, or of another version.",
    remedy="Save the plan again with plan.save or `kiwi plan --out`.",
)

OTHER_STEP = _error(
    "KIWI-P002",
    "A saved plan is for another function or other arguments",
    cause="The function, its shapes or its constants changed since the plan was saved, or another "
    "function is named.",
    remedy="Plan again; or use apply(fun, strict=False) if only values of constants changed.",
)

OTHER_OPTIONS = _error(
    "KIWI-P003",
    "A plan makes choices that this Kiwi does not offer",
    cause="Another version of Kiwi made the plan.",
    remedy="Plan again; the saved plan can still be applied.",
)

PROCESSES_DIFFER = _error(
    "KIWI-P004",
    "Processes have different plans",
    cause="The processes were given different functions, arguments or options, or the time limit "
    "ended their searches at different points.",
    remedy="Save the plan in process 0 with plan.save(path), and run "
    "kiwi.load_plan(path).apply(fun) in all; or use a larger time_limit_seconds or gap.",
)

UNPRICED_OPERATORS = _error(
    "KIWI-P007",
    "The operators of a plan have no prices of their own",
    cause="A planner that prices no layouts made the plan: it is a schedule of one device.",
    remedy='Use plan.explain("search"), or make the plan with planner="joint".',
)

NO_PROBLEM = _error(
    "KIWI-P005",
    "The problem behind a plan cannot be formulated again",
    cause="Another version of Kiwi made the plan, or the plan used a profile table that was moved "
    "or changed since.",
    remedy="Plan again.",
)

OTHER_STRUCTURE = _error(
    "KIWI-P006",
    "Arguments have another structure than the planned ones",
    cause="The arguments are not the planned ones, or values for static arguments were given.",
    remedy="Pass the same arguments as to plan(), with None for static ones.",
)


# Shardings, pins and hints.

SHARDING = _error(
    "KIWI-S001",
    "A sharding contradicts the mesh or the shape",
    cause="The sharding was written for another array or another mesh.",
    remedy="Pass a sharding that fits, or None to leave the choice to the planner.",
)

AXIS_TWICE = _error(
    "KIWI-S002",
    "A sharding uses a mesh axis twice",
    cause="A mesh axis can split only one dimension of a tensor, and only once.",
    remedy="Name each mesh axis at most once per tensor.",
)

OTHER_TENSOR = _error(
    "KIWI-S003",
    "A sharding belongs to another tensor or mesh",
    cause="The sharding has another number of dimensions than the tensor, or uses an axis that "
    "the mesh does not have.",
    remedy="Pass the sharding of this array, with axes of this mesh.",
)

TOO_MANY_ENTRIES = _error(
    "KIWI-S004",
    "A sharding has more entries than the array has dimensions",
    cause="The spec was written for an array of higher rank.",
    remedy="Give at most one entry per dimension.",
)

UNREDUCED = _error(
    "KIWI-S005",
    "A sharding has unreduced axes",
    cause="A tensor of partial sums cannot be an argument or a result of a plan.",
    remedy="Pass the sharding without unreduced axes: results are reduced before they are "
    "returned.",
)

SPEC_ENTRY = _error(
    "KIWI-S006",
    "An entry of a PartitionSpec is not understood",
    cause="An entry must be None, an axis name, or a tuple of axis names.",
    remedy="Use None for a dimension that is not sharded, or leave the whole sharding out.",
)

UNKNOWN_AXIS = _error(
    "KIWI-S007",
    "A sharding names an axis that the mesh lacks",
    cause="The mesh has other axis names.",
    remedy="Use the names of the mesh, or pass axis_names= to name its axes.",
)

UNEVEN = _error(
    "KIWI-S008",
    "A dimension cannot be cut into equal parts",
    cause="Kiwi plans only shardings whose pieces have equal size.",
    remedy="Pad the dimension, or shard another one.",
)

NOT_A_SHARDING = _error(
    "KIWI-S009",
    "A value is no sharding",
    cause="A sharding is a PartitionSpec, a NamedSharding, or None.",
    remedy='Pass for example jax.sharding.PartitionSpec("x", None), or None to leave the choice '
    "to the planner.",
)

PATTERN = _error(
    "KIWI-S010",
    "A pattern matches no argument",
    cause="The path of an argument consists of a parameter's name and the keys of its pytree, "
    "joined by slashes.",
    remedy="Write a pattern that matches a whole path; ** stands for any number of parts.",
)

PIN_TEXT = _error(
    "KIWI-S011",
    "A pin has no sharding",
    cause="The text has no equals sign.",
    remedy="Write PATTERN=SHARDING, for example 'params/**=x,-'.",
)

OTHER_MEMORY = _error(
    "KIWI-S012",
    "A sharding is in a memory that Kiwi does not plan for",
    cause="A plan's arguments and results lie in the device's memory or in the host's pinned "
    "memory.",
    remedy='Pass the same sharding without memory_kind, or with "pinned_host".',
)

NOT_A_PREFIX = _error(
    "KIWI-S013",
    "Shardings do not fit the pytree",
    cause="The structure of the shardings is no prefix of the structure of the arguments or "
    "results.",
    remedy="Pass a pytree prefix, as to jax.jit.",
)

OTHER_MESH = _error(
    "KIWI-S014",
    "A sharding is on another mesh than the plan",
    cause="The mesh of the NamedSharding has other axes or sizes.",
    remedy="Give the plan the same mesh, or pass PartitionSpecs.",
)

HINT_TWICE = _error(
    "KIWI-S015",
    "A hint asks for two things at once",
    cause="A value can be kept, recomputed or offloaded, but only one of the three.",
    remedy="Ask for one of them, or for none to leave the choice to the plan.",
)

CONTRADICTION = _error(
    "KIWI-S016",
    "Two requests contradict each other",
    cause="Both requests concern the same value and cannot both hold.",
    remedy="Drop one of them.",
)

INDIVISIBLE = _error(
    "KIWI-S017",
    "An argument that must not be replicated can only be replicated",
    cause="No axis of the mesh divides a dimension of the argument.",
    remedy="Pad a dimension, use another mesh, or leave the pattern out.",
)

GIVEN_VALUE = _error(
    "KIWI-S018",
    "A hint asks to recompute or offload an argument",
    cause="No operator of the step computes an argument.",
    remedy="Use keep=True, which is the case anyway; or hint a value computed from the argument.",
)

NO_SHARDING_LEFT = _error(
    "KIWI-S019",
    "Requests leave no sharding for an argument",
    cause="The requests exclude every sharding: for example, a pinned sharding is replicated and "
    "another request forbids that, or two requests cut different dimensions by the same axis.",
    remedy="Drop one of the requests.",
)

NO_STRATEGY = _error(
    "KIWI-S020",
    "No strategy of the operator yields the sharding",
    cause="The operator needs a dimension whole, or the mesh divides none of its dimensions.",
    remedy="Use one of the shardings that the message lists.",
)

CANNOT_OFFLOAD = _error(
    "KIWI-S021",
    "A hint asks to offload a value that cannot be offloaded",
    cause="Kiwi offloads arrays of the forward pass that the backward pass reads, except those in "
    "a loop inside of another loop.",
    remedy="Drop the hint, or hint another value.",
)

CANNOT_RECOMPUTE = _error(
    "KIWI-S022",
    "A hint asks to recompute a value that cannot be recomputed",
    cause="The operator may run only once, or the backward pass does not read the value.",
    remedy="Drop the hint, or hint a value of the forward pass that the backward pass reads.",
)

REPLICATED = _note(
    "KIWI-S101",
    "No mesh axis divides any dimension of an argument",
    cause="Shardings are even: an axis of n devices can only split a dimension that is a multiple "
    "of n.",
    remedy="Pad a dimension of the argument, or choose mesh axes that divide one. Small arguments "
    "cost little replicated.",
)

UNEVEN_DIMENSION = _note(
    "KIWI-S102",
    "No mesh axis divides a long dimension of a parameter",
    cause="The dimension, often the size of a vocabulary, is no multiple of the size of an axis.",
    remedy="Pad the dimension to the number that the note names, if the parameter is large.",
)

PINNED = _note(
    "KIWI-S103",
    "Values are pinned by shardings of the function or its arguments",
    cause="with_sharding_constraint, reshard, out_sharding or sharded arguments ask for these "
    "layouts, and the plan follows them.",
    remedy="Call plan.without_user_shardings() to see what that costs; "
    "respect_user_shardings=False plans without them.",
)

UNFOLLOWED = _note(
    "KIWI-S104",
    "Values have other shardings than the function asks for",
    cause="The planner heeds no constraints, the mesh lacks the axes, or no strategy of the "
    "operators yields the layout.",
    remedy='Use planner="joint", pass axis_names= as the function uses them, or put no constraint '
    "on this value.",
)

KEPT_COPIES = _note(
    "KIWI-S105",
    "Resharded operands are kept for later readers",
    cause="A copy that several operators read is gathered once and held, if it fits into memory.",
    remedy="Nothing has to be done. The proven gap holds for plans without such copies.",
)

HINTS_UNHEEDED = _warning(
    "KIWI-S106",
    "The planner heeds no hints",
    cause="The planner's method takes no requests for single values.",
    remedy='Use planner="joint", which heeds all hints.',
)

RESIDENCY_UNHEEDED = _warning(
    "KIWI-S107",
    "The planner heeds no hints to keep or to recompute",
    cause="The planner recomputes by a fixed rule, or not at all.",
    remedy='Use planner="joint", which heeds them.',
)

OFFLOAD_UNREAD = _warning(
    "KIWI-S108",
    "Hints to offload are not read",
    cause="The plan may not use host memory: no host_memory_budget is given, or the target has "
    "none.",
    remedy="Pass host_memory_budget=, and a profile whose programs have host memory.",
)

HINTS_INSIDE = _warning(
    "KIWI-S109",
    "Hints inside a region that is planned whole are not read",
    cause="Kiwi plans the region as one operator, and decides nothing inside of it.",
    remedy="Use open_loops=True for loops; for other regions put the hint on a result of the "
    "region.",
)


# Tracing the function.

FUNCTION = _error(
    "KIWI-T001",
    "A function cannot be planned",
    cause="Kiwi plans functions of arrays that jax can trace.",
    remedy="Pass a function that jax.jit takes.",
)

NOT_A_FUNCTION = _error(
    "KIWI-T002",
    "The first argument is not a function",
    cause="kiwi.plan and kiwi.jit take a function as their first argument.",
    remedy="Pass options by keyword: @kiwi.jit(mesh_shape=(2, 4)).",
)

NO_ARRAY = _error(
    "KIWI-T003",
    "A call has no array argument",
    cause="There is nothing to shard; values that the function captures are constants.",
    remedy="Pass the training state and the batch as arguments.",
)

NOT_AN_ARRAY = _error(
    "KIWI-T004",
    "An argument is not an array",
    cause="jax traces arrays, numbers, and pytrees of these.",
    remedy="Name a setting, such as a text or a function, in static_argnums or static_argnames. "
    "Register a class that contains arrays with jax.tree_util.register_dataclass. Convert an array "
    "of another library with jax.numpy.asarray.",
)

PMAP = _error(
    "KIWI-T005",
    "A pmap cannot be traced",
    cause="jax.pmap maps an axis over the devices of this process.",
    remedy="Plan the function without pmap: it takes the whole batch, and Kiwi shards it.",
)

UNBOUND_AXIS = _error(
    "KIWI-T006",
    "A collective names an axis that nothing binds",
    cause="Kiwi plans functions of whole arrays; named axes exist only inside of shard_map, "
    "vmap(axis_name=...) and pmap.",
    remedy="Leave the collective out: a mean over the whole batch is a mean over all devices, and "
    "the plan adds the communication. Or wrap the function in jax.shard_map, and plan it with "
    "axis_names=.",
)

AXIS_OF_OTHER_MESH = _error(
    "KIWI-T007",
    "The function names a mesh axis that the plan's mesh lacks",
    cause="The function's PartitionSpecs were written for a mesh with other names.",
    remedy="Pass axis_names= with the names that the function uses (--axis-names on the command "
    "line).",
)

RAISES = _error(
    "KIWI-T008",
    "The function raises an error while jax traces it",
    cause="The function fails for arguments of these shapes, before anything is planned.",
    remedy="Correct the line that the message names; --debug shows the traceback. "
    "jax.eval_shape(function, *args) shows the same error without Kiwi.",
)

DATA_DEPENDENT = _error(
    "KIWI-T009",
    "The function needs values of arrays while jax traces it",
    cause="An if, a loop, or a conversion such as int() or bool() depends on the values of an "
    "array, and arrays have only shapes while a function is traced.",
    remedy="Use jnp.where, jax.lax.cond or jax.lax.while_loop; or static_argnames= for an "
    "argument that is not an array.",
)

NO_ARRAY_RESULT = _error(
    "KIWI-T010",
    "A result of the function is not an array",
    cause="jax functions return arrays, numbers, None, and pytrees of these.",
    remedy="Leave the result out, or return it from a function around the step.",
)

CAPTURED = _error(
    "KIWI-T011",
    "The function captures a value that jax is tracing",
    cause="The function is planned inside of jax.jit, jax.grad or jax.vmap, and uses a variable "
    "of the function around it.",
    remedy="Pass the value to the planned function as an argument.",
)

EXPLICIT_INSIDE = _error(
    "KIWI-T012",
    "A planned function is called inside a program over Explicit mesh axes",
    cause="The planned program is written for Auto axes; jax does not mix Auto and Explicit axes "
    "in one program.",
    remedy="Call the planned function outside of jax.jit, jax.grad and jax.vmap, or make the mesh "
    "with axis_types=(jax.sharding.AxisType.Auto, ...).",
)

WHOLE = _note(
    "KIWI-T101",
    "A region is planned whole and replicated",
    cause="Kiwi does not open the region: a loop with open_loops=False, a loop of unknown kind, "
    "or a call without a sharding rule.",
    remedy="Use open_loops=True where it is off; otherwise put kiwi.sharding_rule or "
    "jax.shard_map around the function.",
)

AS_WRITTEN = _note(
    "KIWI-T102",
    "A shard_map is left as written",
    cause="The function itself says what each device computes. Kiwi moves values to and from the "
    "layouts that the shard_map names.",
    remedy="Nothing has to be done. Without the shard_map Kiwi chooses the layouts.",
)

RULELESS = _note(
    "KIWI-T103",
    "A call without a sharding rule is replicated and kept",
    cause="Kiwi cannot see into the call: a kernel, a callback, or a custom call.",
    remedy="Give its function a rule with kiwi.register_kernel or kiwi.sharding_rule.",
)


# The compile check.

CHECK = _error(
    "KIWI-V001",
    "The compile check could not be carried out",
    cause="The compiler refused the program, or its output cannot be read.",
    remedy="Use verify=None, which plans without the check.",
)

TARGET = _error(
    "KIWI-V002",
    "A target of the compile check is not known",
    cause='verify= takes the name of a compiler, "auto" or None.',
    remedy="Use one of the targets that the message lists.",
)

COMPILATION_FAILED = _error(
    "KIWI-V003",
    "The compiler failed",
    cause="XLA ended with an error, or ran out of memory; the message ends with its last lines.",
    remedy='Use verify=None, which plans without the check, or verify="cpu", which asks another '
    "compiler.",
)

COMPILER_MISSING = _error(
    "KIWI-V004",
    "A compiler is not installed",
    cause="A plain installation has only XLA:CPU.",
    remedy="Run pip install 'kiwi-planner[aot-cuda]' or 'kiwi-planner[aot-tpu]', or use "
    "verify='cpu'.",
)

COMPILER_VERSION = _error(
    "KIWI-V005",
    "A compiler is of another version than jax",
    cause="jax and its plugins work together only in the same version.",
    remedy="Install the plugin in the version of jax, or use verify='cpu'.",
)

COMPILER_PROFILE = _error(
    "KIWI-V006",
    "A compiler does not compile for this profile",
    cause="The profile is not one of the catalogue's devices, and does not describe its device to "
    "the compiler.",
    remedy="Use a profile of the catalogue, or verify='cpu'.",
)

PLATFORM = _error(
    "KIWI-V007",
    "A platform's compiler is not known",
    cause="Kiwi knows the compilers of CPUs, NVIDIA GPUs and TPUs.",
    remedy='Use verify="cpu", which predicts and checks the program that XLA:CPU compiles.',
)

COMPILER = _error(
    "KIWI-V008",
    "A compiler is not available",
    cause="The compiler is missing, too old, or does not know the device.",
    remedy='Use verify="cpu", or verify=None.',
)

NO_HOST_MEMORY = _error(
    "KIWI-V009",
    "A compiler cannot check values in host memory",
    cause="XLA:CPU has one memory, and drops copies between two memories.",
    remedy="Set verify= to a compiler with host memory, or to None.",
)

NOT_COMPILED = _error(
    "KIWI-V010",
    "A plan has no compiled program",
    cause="The plan was made with verify=None, or checked by another compiler than its own, or "
    "that compiler does not report its buffers.",
    remedy='Plan with verify="auto" where the compiler of the hardware is installed.',
)

CANNOT_LOWER = _error(
    "KIWI-V011",
    "A step cannot be lowered for the target",
    cause="The step calls a kernel that is written for other devices.",
    remedy="Set verify= to the compiler of the devices that the kernel is for, or to None.",
)

CANNOT_SEND = _error(
    "KIWI-V012",
    "A step cannot be sent to the compiler's process",
    cause="The step calls something that jax.export cannot serialise, such as a callback with "
    "results, or a kernel that the target refuses.",
    remedy='Use verify="cpu" and jax.config.update("jax_num_cpu_devices", ...) with as many '
    "devices as the mesh has; or use verify=None.",
)

NO_DUMP = _error(
    "KIWI-V013",
    "XLA did not write its program",
    cause="This version of jax or its plugin writes other files than Kiwi reads.",
    remedy="Use verify='cpu', or the versions of jax that Kiwi is tested with.",
)

NO_SHARDY = _error(
    "KIWI-V014",
    "XLA did not write the shardings that it propagates",
    cause="jax_use_shardy_partitioner is off.",
    remedy="Turn jax_use_shardy_partitioner on, or use another planner.",
)

VMEM = _error(
    "KIWI-V015",
    "A v4 has too little VMEM for overlapping sums",
    cause="A v4's VMEM is too small for kernels that run while a reduction moves data.",
    remedy="Nothing has to be done: Kiwi tries another way of overlapping.",
)

NO_EXPECTATION = _error(
    "KIWI-V016",
    "Another compiler's rules have no strategy for a layout of the plan",
    cause="The plan was made by the rules of its hardware's compiler, and the other compiler "
    "fuses or partitions the operator in another way.",
    remedy='Use verify="auto", the compiler of the hardware, or verify=None.',
)

NOT_COMPARED = _warning(
    "KIWI-V105",
    "The plan is not compared with another compiler's program",
    cause="The rules of the compiler that verify= names have no strategy for a layout of the plan.",
    remedy='Use verify="auto": the compiler of the hardware checks the plan.',
)

OTHER_COMPILER = _warning(
    "KIWI-V101",
    "The plan is checked by another compiler than the hardware's",
    cause="The hardware's own compiler is not installed.",
    remedy='Install the extra that the note names; or pass verify="cpu", which says that this is '
    "meant.",
)

UNCHECKED_HOST = _warning(
    "KIWI-V102",
    "The plan is not compiled, because the compiler has no host memory",
    cause="Values of the plan lie in host memory, and verify= names a compiler with one memory.",
    remedy='Use verify="auto", or the compiler of the hardware.',
)

TIME_DEVIATES = _warning(
    "KIWI-V103",
    "The compiled step time differs from the planned one",
    cause="The compiler fuses or schedules kernels in another way than predicted; the warning "
    "names the kernels that differ most.",
    remedy="Run `kiwi deviation`, which lists all kernels; corrections=plan.corrections teaches "
    "the next plan of the model.",
)

OVERLAP_REFUSED = _warning(
    "KIWI-V104",
    "XLA generates no code for the overlap",
    cause="The compiler of the attached devices refuses the options that the plan was compiled "
    "with.",
    remedy="Nothing has to be done: the step runs without overlap. The versions of jax that the "
    "plan was made with avoid this.",
)


def all_topics() -> tuple[Topic, ...]:
    """Returns all topics, sorted by code."""
    topics = [topic for topic in globals().values() if isinstance(topic, Topic)]
    return tuple(sorted(topics, key=lambda topic: topic.code))


def topic_of(code: str) -> Topic | None:
    """Returns the topic with this code; None if no topic has it."""
    return next((topic for topic in all_topics() if topic.code == code), None)
