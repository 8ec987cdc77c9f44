"""The registry of kernels by name: how they may be sharded, and what part of their work they do.

An entry belongs to a function, given by its module and qualified name. A step that calls the
function is planned as if it called the function through `kiwi.sharding_rule` (`recognised`). The
shipped entries are attention functions of jax: batch and heads may be sharded, and all other
dimensions stay whole.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiwi.errors import InvalidArgumentError
from kiwi.hlo.kernels import Factors
from kiwi.messages import topics

_DIMENSION = re.compile(r"\([^()]*\)|[^\s()]+")
_NAMED = re.compile(r"\s*(?P<name>[\w.]+)\s*=(?P<tensor>.*)", re.DOTALL)
_FULL_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")

Arguments = Mapping[str, Any]
"""The arguments of a call, by the names of the parameters."""


@dataclass(frozen=True)
class OperandRule:
    """The factors of one operand.

    `name`: the operand's parameter, with the path inside of the argument, such as `segment_ids.q`;
    None for an operand that is identified by its order.
    """

    name: str | None
    factors: Factors


@dataclass(frozen=True)
class KernelRule:
    """A parsed sharding rule: `operands` before the arrow, `results` behind it."""

    text: str
    operands: tuple[OperandRule, ...]
    results: tuple[Factors, ...]


@dataclass(frozen=True)
class KnownKernel:
    """An entry of the registry.

    - `name`: the function's module and qualified name.
    - `rules`: takes the arguments of a call, returns rules. The first one that fits is used.
    - `whole`: the factors that are never sharded.
    - `share_of_work`: takes the arguments of a call, returns the part of its work that the kernel
      does, in (0, 1].
    - `sizes`: takes the arguments of a call, returns sizes of factors that shapes do not determine.
    - `is_shipped`: whether the entry is Kiwi's own. A call that no rule of such an entry fits is
      left as it is. For a kernel that the user registered, such a call is an error.
    - `is_recognised`: whether calls of the function are recognised. If not, only
      `kiwi.sharding_rule` looks the entry up.
    """

    name: str
    rules: Callable[[Arguments], Sequence[KernelRule]]
    whole: frozenset[str]
    share_of_work: Callable[[Arguments], float]
    sizes: Callable[[Arguments], Mapping[str, int]]
    is_shipped: bool = False
    is_recognised: bool = True


def parsed_rule(name: str, rule: str | None) -> KernelRule:
    """Returns a parsed rule, which is given in Shardy's notation.

    - `name`: the kernel's name in errors.

    **Raises:** `InvalidArgumentError` if the rule cannot be read.
    """
    sides = rule.split("->") if isinstance(rule, str) else []
    if len(sides) != 2 or not all(tensor.strip() for side in sides for tensor in side.split(",")):
        raise InvalidArgumentError(
            f"{name} has no sharding rule that can be read: {rule!r}.",
            topic=topics.RULE_UNREADABLE,
        )
    operands = []
    for tensor in sides[0].split(","):
        named = _NAMED.fullmatch(tensor)
        text = named["tensor"] if named else tensor
        operands.append(OperandRule(named["name"] if named else None, _factors(text)))
    results = tuple(_factors(tensor) for tensor in sides[1].split(","))
    return KernelRule(str(rule), tuple(operands), results)


def _factors(tensor: str) -> Factors:
    return tuple(tuple(dim.strip("()").split()) for dim in _DIMENSION.findall(tensor))


def register_kernel(
    name: str,
    rule: str | Sequence[str],
    *,
    need_replication_factors: Sequence[str] | None = None,
    share_of_work: float | Callable[[Arguments], float] | None = None,
) -> None:
    """Gives a function a sharding rule, by the function's name.

    From then on, a plan treats each call of the function as one operator, as if the calling code
    had wrapped the function in `kiwi.sharding_rule`. The function is called with the shards of a
    device, so the rule must hold for its result. A saved plan needs the same kernels registered
    where it is applied. Registering a name again replaces its rule, also a shipped one.

    - `name`: module and qualified name, such as `"my_lib.attention.fwd"`. The function may be a
      plain function or a method, and may be under `jax.jit`, `jax.custom_vjp` or `jax.custom_jvp`.
      Its module is not imported.
    - `rule`: as in `kiwi.sharding_rule`. A function with several signatures has several rules. The
      first rule that fits a call is used. Operands are the arrays among the arguments, in the order
      of the parameters. `"ids=b s"` is the operand of the parameter `ids`, if there is one.
      `"ids.q=b s"` is an operand inside of a tuple or dictionary. An array that the rule does not
      mention stays whole. So does a dimension of one element if its word has more elements
      elsewhere.
    - `need_replication_factors`: words that are never sharded.
    - `share_of_work`: the part of its work that the kernel does, or a function that returns this
      part from the arguments of a call by name. By default the kernel does all of its work.

    **Raises:** `InvalidArgumentError` if the name or the rule cannot be read, if a word of
    `need_replication_factors` is in no rule, or if the part is not in (0, 1]. Planning a step that
    calls the function raises the same error if no rule fits the arrays.
    """
    if not isinstance(name, str) or not _FULL_NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"register_kernel got the name {name!r}.",
            topic=topics.KERNEL_NAME,
        )
    texts = (rule,) if isinstance(rule, str) or rule is None else tuple(rule)
    rules = tuple(parsed_rule(name, text) for text in texts)
    whole = frozenset(need_replication_factors or ())
    unknown = sorted(whole - _words(rules))
    if unknown or not rules:
        missing = f"no rule with {', '.join(unknown)}" if unknown else "no rule"
        raise InvalidArgumentError(
            f"register_kernel got {missing} for {name}.",
            topic=topics.KERNEL_RULE,
        )
    share = 1.0 if share_of_work is None else share_of_work
    if not callable(share) and not 0 < share <= 1:
        raise InvalidArgumentError(
            f"register_kernel got the share of work {share!r} for {name}.",
            topic=topics.KERNEL_SHARE,
        )
    of_call = share if callable(share) else lambda _: share
    _add(KnownKernel(name, lambda _: rules, whole, of_call, _no_sizes))


def _words(rules: Sequence[KernelRule]) -> frozenset[str]:
    tensors = [
        factors
        for rule in rules
        for factors in (*(operand.factors for operand in rule.operands), *rule.results)
    ]
    return frozenset(factor for tensor in tensors for dim in tensor for factor in dim)


def known_kernel(name: str) -> KnownKernel | None:
    """Returns the entry of a function, given by module and qualified name; None if there is
    none."""
    return _ENTRIES.get(name)


def recognised_kernels() -> tuple[KnownKernel, ...]:
    """Returns the entries whose calls are recognised."""
    return tuple(entry for entry in _ENTRIES.values() if entry.is_recognised)


_ENTRIES: dict[str, KnownKernel] = {}


def _add(entry: KnownKernel) -> None:
    _ENTRIES[entry.name] = entry


_OF_ATTENTION = frozenset({"s", "t", "d", "e", "g", "block"})
"""The factors of attention that stay whole: sequences, features, heads of a group, blocks."""

_CUDNN_CAUSAL = (2, 3)
"""The causal values of cuDNN's `mask_type`: without padding and with padding."""


def _all(arguments: Arguments) -> float:
    return 1.0


def _no_sizes(arguments: Arguments) -> Mapping[str, int]:
    return {}


def _half_if_causal(arguments: Arguments) -> float:
    """Returns the part of its work that cuDNN does: a half under a causal mask, else all of it.

    cuDNN skips the blocks of scores above the diagonal. It has no body in the jaxpr from which Kiwi
    could see this.
    """
    mask = arguments.get("mask_type")
    is_causal = arguments.get("is_causal") or getattr(mask, "value", mask) in _CUDNN_CAUSAL
    return 0.5 if is_causal else 1.0


def _flash_block(arguments: Arguments) -> Mapping[str, int]:
    """Returns the size of the factor `block`: the number of sequences that the kernel takes at
    once. A shard has a multiple of this number."""
    blocks = arguments.get("block_sizes")
    return {"block": 1 if blocks is None else blocks.block_b}


def _cudnn_rules(*rules: KernelRule) -> Callable[[Arguments], Sequence[KernelRule]]:
    """Returns a function that chooses the rule of a call's `layout`.

    Packed and paged sequences have no rule: by their offsets, a shard of the batch would read
    outside of the shard.
    """

    def chosen(arguments: Arguments) -> Sequence[KernelRule]:
        apart = ("q_offsets", "kv_offsets", "page_table_k", "page_table_v")
        if any(getattr(arguments.get(name), "size", 0) for name in apart):
            return ()
        return rules[arguments["layout"] :][:1]

    return chosen


def _splash_rules() -> Iterator[str]:
    """Yields the rules of splash attention: with groups of query heads that share a head of keys
    and values, and with one head of keys and values for all.

    The tables of a mask have a row for each head, or one row for all heads.
    """
    passes, tables = ("fwd", "dq", "dkv"), ("data_next", "mask_next", "block_mask")
    for heads, key in (("(k g)", "k t"), ("h", "t")):
        masks = (
            f"{name}_mask_info.{table}={heads} {name}0 {name}1"
            for name in passes
            for table in tables
        )
        ids = f"segment_ids.q=s, segment_ids.kv=t, sinks={heads}"
        yield f"q={heads} s d, k={key} d, v={key} e, {ids}, {', '.join(masks)} -> {heads} s e"


def _ship(
    name: str,
    *texts: str,
    share_of_work: Callable[[Arguments], float] = _all,
    sizes: Callable[[Arguments], Mapping[str, int]] = _no_sizes,
    chosen: Callable[..., Callable[[Arguments], Sequence[KernelRule]]] | None = None,
    is_recognised: bool = True,
) -> None:
    parsed = tuple(parsed_rule(name, text) for text in texts)
    rules = chosen(*parsed) if chosen else lambda _: parsed
    _add(KnownKernel(name, rules, _OF_ATTENTION, share_of_work, sizes, True, is_recognised))


_PALLAS = "jax.experimental.pallas.ops"
_GROUPED = "b s (k g) d, b t k d, b t k d"

_ship(
    f"{_PALLAS}.tpu.flash_attention.flash_attention",
    "(b block) h s d, (b block) h t d, (b block) h t d, ab=(b block) h s t,"
    "segment_ids.q=(b block) s, segment_ids.kv=(b block) t -> (b block) h s d",
    sizes=_flash_block,
)
_ship(
    f"{_PALLAS}.tpu.splash_attention.splash_attention_kernel._splash_attention_custom",
    *_splash_rules(),
)
_ship(
    f"{_PALLAS}.tpu.paged_attention.paged_attention_kernel.paged_attention",
    "b (k g) d, k n p d, k n p d, lengths=b, page_indices=b m -> b (k g) d",
)
_ship(f"{_PALLAS}.gpu.attention.mha", f"{_GROUPED}, segment_ids=b s -> b s (k g) d")
_ship(f"{_PALLAS}.gpu.attention_mgpu.attention", f"{_GROUPED} -> b s (k g) d")
_ship(
    f"{_PALLAS}.gpu.decode_attention.gqa",
    "b (k g) d, b t k d, b t k d, start_idx=b, kv_seq_len=b -> b (k g) d",
)
_ship(
    f"{_PALLAS}.gpu.decode_attention.mqa",
    "b h d, b t d, b t d, start_idx=b, kv_seq_len=b -> b h d",
)
_ship(
    # The function may use any implementation, so its calls are not recognised.
    "jax._src.nn.functions.dot_product_attention",
    f"{_GROUPED} -> b s (k g) d",
    share_of_work=_half_if_causal,
    is_recognised=False,
)
_ship(
    "jax._src.cudnn.fused_attention_stablehlo._dot_product_attention",
    f"{_GROUPED}, bias=b (k g) s t, q_seqlen=b, kv_seqlen=b -> b s (k g) d",
    "b (k g) s d, b k t d, b k t d, bias=b (k g) s t, q_seqlen=b, kv_seqlen=b -> b (k g) s d",
    share_of_work=_half_if_causal,
    chosen=_cudnn_rules,
)
