"""The colour and marker of each planner, the same in all figures."""

STYLES = {
    "alpa": ("#7f7f7f", "o"),
    "alpa+dots": ("#1f77b4", "s"),
    "alpa+megatron": ("#2ca02c", "^"),
    "two-pass": ("#9467bd", "D"),
    "joint": ("#d62728", "*"),
}
