"""Constants and helpers shared by the experiments of BF-IO's paper (bf_io.py)."""

from common import bf_io

BURSTGPT, AZURE = "burstgpt_sample_8000", "AzureLLMInferenceTrace_conv"
IMBALANCE = "avg_imbalance_tokens"


def label(horizon, discount=None):
    return f"BF-IO H={horizon}" + (f", weights {discount}^h" if discount else "")


def drawn(ctx, requests, workload=None):
    """Flags of a run over `requests` requests, whose rows are drawn with replacement."""
    return {**(workload or ctx.workload).flags, "draw": "replacement", "requests": requests}


def loads_of(steps):
    """Loads by step and worker, tokens."""
    return steps.filter(regex="^load_").to_numpy(dtype=float)


# The paper's values of TABLE_1_COLUMNS: 10^4 tokens, 10^4 tokens/s, ms, kJ.
PAPER_FCFS, PAPER_JSQ = (27.9, 8.00, 14.2, 396), (28.2, 7.99, 14.2, 396)
PAPER_BF_IO_0, PAPER_BF_IO_20 = (2.92, 9.03, 12.6, 386), (1.65, 9.13, 12.5, 383)

TABLE_1 = {  # name: flags, the paper's values
    "FCFS, most free slots": ({"policy": "fcfs"}, PAPER_FCFS),
    "JSQ by count": ({"policy": "least_requests"}, PAPER_JSQ), "JSQ by tokens": ({"policy": "least_tokens"}, PAPER_JSQ),
    label(0): (bf_io(0, "paper"), PAPER_BF_IO_0), label(5): (bf_io(5, "paper"), None),
    label(20): (bf_io(20, "paper"), PAPER_BF_IO_20), label(20, 0.7): (bf_io(20, "paper", 0.7), PAPER_BF_IO_20),
    "lpt": ({"policy": "lpt"}, None), "br0": ({"policy": "br0"}, None), "bf_io square": (bf_io(0, "square"), None),
    "bf_io_auto": ({"policy": "bf_io_auto"}, None),
}
TABLE_1_COLUMNS = (
    ("imbalance, 10^4 tokens", IMBALANCE, 1e-4), ("throughput, 10^4 tokens/s", "throughput_tokens_per_s", 1e-4),
    ("TPOT, ms", "tpot_s_mean", 1e3), ("energy, kJ", "energy_j", 1e-3),
)
