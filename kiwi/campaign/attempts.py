"""All attempts of a campaign, in the order in which they are made, outermost first.

A request consists of searches. A search consists of rounds. A round is one solution of the problem
and the programs compiled from that solution. `docs/reference/attempts.md` shows this table.
"""

from kiwi.campaign.attempt import Attempt, Kind

HOST_ARGUMENTS = Attempt(
    "arguments on the host",
    Kind.REQUEST,
    "`offload_arguments=True` and a budget of the host",
    "A step for each of some growing sets of arguments in the host's memory, without a compiler; "
    "then the fastest one with all work.",
    ("LATE_ARGUMENT_SHARES", "EARLY_ARGUMENT_SHARES", "LEAST_ARGUMENT_SHARE"),
    "kiwi.campaign.host_arguments",
)

WITHOUT_OFFLOADING = Attempt(
    "without offloading",
    Kind.REQUEST,
    "Values may be offloaded, and no hint asks for it.",
    "The step without the host's memory. The search that offloads begins with that plan, and the "
    "faster one is the answer.",
    (),
    "kiwi.planners.joint",
)

WITH_OFFLOADING = Attempt(
    "with offloading",
    Kind.REQUEST,
    "After the step was planned without offloading.",
    "The step with offloading, from the plan without.",
    ("OFFLOADING_SHARE",),
    "kiwi.planners.joint",
)

FIRST_SEARCH = Attempt(
    "first search",
    Kind.SEARCH,
    "Always.",
    "The problem under the budget, from no start or from the one that the caller gives.",
    (
        "ENOUGH_PROGRAMS",
        "PROBLEM_ROUNDS",
        "PREDICTED_ROUNDS",
        "LATE_SHARE",
        "LATE_SECONDS",
        "LONG_STEP_AIM",
    ),
    "kiwi.campaign.campaign",
)

LEAST_PEAK = Attempt(
    "least peak of the fastest shardings",
    Kind.SEARCH,
    "The solver found no plan, and none was compiled.",
    "The shardings of the step without a limit, with other residencies. Where these fit, the "
    "search begins again with them; else the refusal names their peak if it is lower.",
    ("LEAST_PEAK_SHARE", "SECOND_SEARCH_SHARE"),
    "kiwi.campaign.obvious_starts",
)

ABOVE_BUDGET = Attempt(
    "above the budget",
    Kind.SEARCH,
    "No plan is predicted to fit, there is a compiler, and none was compiled.",
    "A limit above the budget, near the least peak known: programs may need less than predicted.",
    ("FIRST_RAISED", "ABOVE_LEAST", "MOST_RAISED", "MOST_RAISED_TO_LEAST", "SECOND_SEARCH_SHARE"),
    "kiwi.campaign.refusals",
)

FREE_PROGRAM = Attempt(
    "the free plan",
    Kind.SEARCH,
    "Estimates alone have refused the budget, and there is a compiler.",
    "The plan without a limit, as compiled: a budget that it meets is not refused.",
    ("MOST_RAISED_TO_FREE", "SECOND_SEARCH_SHARE"),
    "kiwi.campaign.searches",
)

WITHOUT_PINS = Attempt(
    "without pins",
    Kind.SEARCH,
    "No plan fits, and the caller pinned something.",
    "The step without the pins, then without each one: the error names those to blame.",
    ("MOST_DROPPED_PINS", "PIN_TRIAL_EFFORT", "ANY_PLAN"),
    "kiwi.campaign.refusals",
)

WITH_CORRECTIONS = Attempt(
    "with what programs took",
    Kind.SEARCH,
    "The compiled program takes longer than the plan. Some kinds of kernels account for it, or the "
    "program waits for communication that the plan hides.",
    "The step with their prices corrected, and with less overlap. The faster plan as compiled is "
    "the answer.",
    (
        "SLOWER_PROGRAM",
        "LATE_PROGRAM",
        "CAUSED_BY_WAITING",
        "LEARNT_OVERLAP",
        "NOTICED_KERNEL",
        "UNPLANNED_TRANSFERS",
        "MOST_CORRECTIONS",
        "CORRECTED_PROGRAMS",
        "CORRECTED_SHARE",
    ),
    "kiwi.campaign.learnt_seconds",
)

EACH_OPERATOR = Attempt(
    "each operator for itself",
    Kind.SOLUTION,
    "Too few equal layers, no tied solution, or `equal_layers=False`.",
    "The whole problem.",
    ("LEAST_LAYERS", "LEAST_EQUAL_SHARE"),
    "kiwi.campaign.equal_layers",
)

TIED_LAYERS = Attempt(
    "tied layers",
    Kind.SOLUTION,
    "Equal layers make up enough of the problem.",
    "One decision for the equal operators of all layers.",
    ("TIED_SHARE", "TIED_ROUNDS"),
    "kiwi.campaign.equal_layers",
)

DIFFERENT_LAYERS = Attempt(
    "layers that differ",
    Kind.SOLUTION,
    "After the tied layers, unless an earlier round's bound shows that it gains nothing.",
    "The whole problem from the tied solution, for a few rounds, and on if that gains enough.",
    ("POLISH_ROUNDS", "DIFFERENT_LAYERS_GAIN"),
    "kiwi.campaign.equal_layers",
)

OBVIOUS_START = Attempt(
    "from an obvious start",
    Kind.SOLUTION,
    "An obvious solution within the limit is faster than what was found.",
    "The whole problem from that solution: data parallelism, FSDP, Megatron's sharding or a "
    "mixture, with everything kept or all recomputed.",
    (),
    "kiwi.campaign.obvious_starts",
)

CROWDED_COPIES = Attempt(
    "copies that crowd",
    Kind.SOLUTION,
    "Copies of the solution share the time behind which they are hidden.",
    "The problem again, with such copies charged for what they do not hide.",
    ("MOST_CROWD_CUTS",),
    "kiwi.campaign.problem_search",
)

OTHER_ARGUMENTS = Attempt(
    "other shardings of the arguments",
    Kind.SOLUTION,
    "An obvious solution shards the arguments otherwise and would make copies again.",
    "That solution's axes for the arguments, compared once both keep their copies.",
    ("MOST_OTHER_ARGUMENT_SHARDINGS", "OTHER_ARGUMENT_SHARDINGS_GAIN"),
    "kiwi.campaign.copies_kept",
)

KNOWN_START = Attempt(
    "known from the start",
    Kind.SOLUTION,
    "A start, or an obvious solution, is predicted to fit and to be faster than the best plan: "
    "what programs taught had left it out.",
    "That solution as it is.",
    (),
    "kiwi.campaign.problem_search",
)

SCHEDULE = Attempt(
    "schedule",
    Kind.SOLUTION,
    "The planner is one of schedules.",
    "A schedule under the limit.",
    ("SCHEDULE_ROUNDS",),
    "kiwi.campaign.limit_search",
)

NEEDED_BARRIERS = Attempt(
    "needed barriers",
    Kind.PROGRAM,
    "The compiler schedules for memory, and not every step is tied.",
    "The plan with the barriers that it needs.",
    (),
    "kiwi.campaign.barrier_levels",
)

ALL_BARRIERS = Attempt(
    "a barrier at every step",
    Kind.PROGRAM,
    "The compiler needs that, there is no compiler, or no plan fits with fewer barriers: then all "
    "rounds are made again.",
    "The plan with every step in its place.",
    (),
    "kiwi.campaign.closed_loop",
)

OTHER_HEAP = Attempt(
    "another place on the heap",
    Kind.PROGRAM,
    "A program is over the budget by no more than its heap wastes, and the next plan is slower or "
    "there is none.",
    "The same program with the compiler's other ways to place buffers.",
    ("HOPELESS_PROGRAM", "LEAST_SLOWER"),
    "kiwi.campaign.barrier_levels",
)

OTHER_SCHEDULER = Attempt(
    "another scheduler",
    Kind.PROGRAM,
    "A program with needed barriers is over the budget, and the next plan is slower or there is "
    "none.",
    "The same program ordered by the compiler's other schedulers.",
    ("LEAST_SLOWER",),
    "kiwi.campaign.barrier_levels",
)

MORE_TIED_STEPS = Attempt(
    "more tied steps",
    Kind.PROGRAM,
    "No scheduler and no heap made the program fit.",
    "Barriers in front of what the program holds beyond the plan at its peak.",
    ("MOST_TIED_TRIALS", "LEAST_TIED_PART", "HOPELESS_PROGRAM"),
    "kiwi.campaign.barrier_levels",
)

OTHER_ORDER = Attempt(
    "another order",
    Kind.PROGRAM,
    "Every step is tied, the plan is over the budget by no more than its heap wastes, and the next "
    "plan is slower or there is none.",
    "The same operators in an order in which the heap wastes less.",
    ("PROBLEM_ORDERS", "MOST_PROBLEM_ORDERS", "PREDICTED_ORDERS", "LEAST_SLOWER"),
    "kiwi.campaign.reordered_units",
)

OVERLAPPING = Attempt(
    "overlapping collectives",
    Kind.PROGRAM,
    "The plan is predicted to be faster if its collectives overlap with computation.",
    "The plan compiled so, with copies that begin ahead of their readers.",
    ("OVERLAP_GAIN", "CLEARLY_FASTER"),
    "kiwi.campaign.overlap_search",
)

OTHER_WAY = Attempt(
    "another way to overlap",
    Kind.PROGRAM,
    "The first program waits for communication or is over the budget.",
    "The same plan in the compiler's other ways to overlap.",
    ("SETTLED", "MOST_WAYS", "AS_FAST"),
    "kiwi.campaign.overlap_search",
)

GRADIENTS_IN_TIME = Attempt(
    "gradients in time",
    Kind.PROGRAM,
    "The first program is a little over the budget or far, or that of a plan of less memory is.",
    "The same plan with matmuls that wait for gradients.",
    ("NEARLY", "FAR_OVER", "AS_FAST", "SMALLER_FORM", "LESS_OVER", "GRADIENTS_HIDDEN"),
    "kiwi.campaign.overlap_search",
)

WITHOUT_COPIES_AHEAD = Attempt(
    "copies beside their readers",
    Kind.PROGRAM,
    "No program with copies that begin ahead of their readers is within the budget.",
    "The plan of the smallest one without such copies.",
    (),
    "kiwi.campaign.overlap_search",
)

LESS_MEMORY = Attempt(
    "less memory for overlap",
    Kind.PROGRAM,
    "The overlapping program is over the budget, tied, or leaves room between known limits; or the "
    "best way did not compile.",
    "A plan under a lower limit, with the program that was the best one of the first plan.",
    (
        "MOST_OVERLAP_PLANS",
        "MOST_LARGER",
        "MOST_OVER",
        "LITTLE_FURTHER",
        "FURTHER",
        "LOOSE",
        "OVERLAP_GAIN",
        "COMPARABLE",
        "FULL",
    ),
    "kiwi.campaign.overlap_search",
)

ATTEMPTS = (
    HOST_ARGUMENTS,
    WITHOUT_OFFLOADING,
    WITH_OFFLOADING,
    FIRST_SEARCH,
    LEAST_PEAK,
    ABOVE_BUDGET,
    FREE_PROGRAM,
    WITHOUT_PINS,
    WITH_CORRECTIONS,
    EACH_OPERATOR,
    TIED_LAYERS,
    DIFFERENT_LAYERS,
    OBVIOUS_START,
    CROWDED_COPIES,
    OTHER_ARGUMENTS,
    KNOWN_START,
    SCHEDULE,
    NEEDED_BARRIERS,
    ALL_BARRIERS,
    OTHER_HEAP,
    OTHER_SCHEDULER,
    MORE_TIED_STEPS,
    OTHER_ORDER,
    OVERLAPPING,
    OTHER_WAY,
    GRADIENTS_IN_TIME,
    WITHOUT_COPIES_AHEAD,
    LESS_MEMORY,
)
"""All attempts, in the order in which they are made."""
