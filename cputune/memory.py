"""How much memory training needs at least: one lower bound for the doctor and the tuner.

It counts only what no run can do without. What exceeds the machine by this count does
certainly not fit; what it lets pass may still run out of memory. BERT base in bf16, batch
12 of 384 tokens, is given 3.0 GiB here, and peaked at 7.6 GiB with torch 2.13 (attention
matrices, dropout masks and fp32 copies come on top).
"""

from __future__ import annotations

from collections.abc import Mapping

from cputune.facts import HostFacts, Unknown
from cputune.workload import Recipe, Workload

SPARE = 0.8
"""Share of the memory that was free before the study; the rest is for what grows meanwhile."""

PROCESS_BYTES = 256 << 20
"""Private memory of a process that has imported torch and transformers' Trainer: 295 MiB with
torch 2.13. The files of libraries, 120 MiB more, are shared by all ranks."""

VALUES_PER_PARAMETER = 4
"""The weight, its gradient and the two moments of AdamW, all of the weight's type
(Rajbhandari et al. 2020, "ZeRO", section 3.1)."""

_SPELLINGS = {
    "vocabulary": ("vocab_size",),
    "hidden": ("hidden_size", "dim", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    "inner": ("intermediate_size", "hidden_dim", "n_inner", "d_ff", "ffn_dim"),
    "heads": ("num_attention_heads", "n_heads", "n_head", "num_heads"),
    "key_heads": ("num_key_value_heads",),
    "head_size": ("head_dim", "d_kv"),
    "decoder_layers": ("num_decoder_layers",),
    "image": ("image_size",),
    "patch": ("patch_size",),
}
"""A size of ours, and the keys by which transformers' configurations name it."""

_BERT = {"vocabulary": 30522, "hidden": 768, "layers": 12, "inner": 3072, "heads": 12}
_LLAMA = {"hidden": 4096, "layers": 32, "heads": 32, "gates": 1}
_VIT = {**_BERT, "vocabulary": 0, "image": 224, "patch": 16}
_DEFAULTS = {
    "bert": _BERT,
    "camembert": _BERT,
    "distilbert": {**_BERT, "layers": 6},
    "mpnet": {**_BERT, "vocabulary": 30527},
    "roberta": {**_BERT, "vocabulary": 50265},
    "xlm-roberta": _BERT,
    "gpt2": {**_BERT, "vocabulary": 50257, "inner": 0},
    "opt": {**_BERT, "vocabulary": 50272},
    "gemma": {**_LLAMA, "vocabulary": 256000, "hidden": 3072, "layers": 28, "inner": 24576}
    | {"heads": 16, "key_heads": 16, "head_size": 256},
    "llama": {**_LLAMA, "vocabulary": 32000, "inner": 11008},
    "mistral": {**_LLAMA, "vocabulary": 32000, "inner": 14336, "key_heads": 8},
    "qwen2": {**_LLAMA, "vocabulary": 151936, "inner": 22016, "key_heads": 32},
    "t5": {"vocabulary": 32128, "hidden": 512, "layers": 6, "inner": 2048}
    | {"heads": 8, "head_size": 64, "decoder_layers": 0},
    "deit": _VIT,
    "vit": _VIT,
}
"""What transformers 5.23 takes for a size that a configuration of this model type leaves out.
0 is derived: four hidden sizes (``inner``), as many as encoder layers (``decoder_layers``)."""


def needed_bytes(workload: Workload, ranks: int = 1, *, nodes: int = 1) -> int | Unknown:
    """Memory of the ``ranks`` of each of so many nodes, at least; Unknown for a model without a
    count.

    Of a script only the processes are counted.
    """
    recipe = workload.recipe
    if recipe is None:
        return ranks * PROCESS_BYTES
    sizes = _sizes(recipe.model)
    if isinstance(sizes, str):
        return Unknown(fact=f"memory need of recipe {recipe.name}", reason=sizes)
    value_bytes = 2 if _of_16_bits(recipe.model) else 4
    values = 1 if recipe.lora else VALUES_PER_PARAMETER  # frozen weights have no gradient
    state = values * value_bytes * _parameters(sizes)
    per_rank = workload.batch_per_rank
    samples = per_rank and per_rank * ranks
    if samples is None:
        samples = -(-(workload.global_batch_size or ranks * nodes) // nodes)
    return ranks * (PROCESS_BYTES + state) + samples * _activation_bytes(sizes, recipe)


def room_bytes(facts: HostFacts) -> int | None:
    """What a job can have at most: the cgroup's limit or the machine's memory, the smaller."""
    sizes = (facts.limits.memory_bytes, facts.memory.total_bytes)
    return min((size for size in sizes if size is not None and size > 0), default=None)


def spare_bytes(facts: HostFacts) -> float | None:
    """What a study counts on of the memory that was free before it; None where it is not known."""
    free = [size for size in (facts.memory.available_bytes, room_bytes(facts)) if size]
    return SPARE * min(free) if free else None


def parameters(model: Mapping[str, object]) -> int | None:
    """Weights of a model, at least, from its transformers configuration; None where unknown."""
    sizes = _sizes(model)
    return None if isinstance(sizes, str) else _parameters(sizes)


def _parameters(sizes: Mapping[str, int]) -> int:
    """Matrices of embeddings, attention and feed-forward blocks.

    Biases, norms, position embeddings and an output head of its own are left out.
    """
    hidden, heads = sizes["hidden"], sizes["heads"]
    head_size = sizes.get("head_size") or hidden // heads
    queries, keys = heads * head_size, (sizes.get("key_heads") or heads) * head_size
    attention = 2 * hidden * queries + 2 * hidden * keys  # queries and output, keys and values
    feed_forward = (2 + sizes.get("gates", 0)) * hidden * sizes["inner"]
    embeddings = sizes["vocabulary"] * hidden + 3 * sizes.get("patch", 0) ** 2 * hidden
    decoder = sizes.get("decoder_layers", 0) * (2 * attention + feed_forward)
    return embeddings + sizes["layers"] * (attention + feed_forward) + decoder


def _activation_bytes(sizes: Mapping[str, int], recipe: Recipe) -> int:
    """What the backward pass needs of one sample, in 16 bits, at least.

    For each token and layer the inputs of the four linear maps and of the activation
    function, and queries, keys and values (Korthikanti et al. 2022, arXiv:2205.05198,
    section 4.1, without norms, dropout masks and the attention matrix). The inputs of frozen
    linear maps, half of it, nobody needs. Padding may be cut, but not where a loss runs over
    positions.
    """
    patch = sizes.get("patch")
    cut = recipe.lengths is not None and recipe.task != "question-answering"
    shortest = recipe.lengths.quantiles[0] if recipe.lengths and cut else recipe.sequence_length
    tokens = (sizes["image"] // patch) ** 2 if patch else shortest
    written = tokens if recipe.target_length is None else recipe.target_length
    layers = tokens * sizes["layers"] + written * sizes.get("decoder_layers", 0)
    bytes_each = 12 * sizes["hidden"] + 4 * sizes["inner"]
    return layers * (bytes_each // 2 if recipe.lora else bytes_each)


def _sizes(model: Mapping[str, object]) -> dict[str, int] | str:
    """The sizes of a model by our names; why they are not known where they are not."""
    kind = model.get("model_type")
    defaults = _DEFAULTS.get(str(kind))
    if defaults is None:
        return f"the weights of model type {kind} are not counted here"
    sizes = dict(defaults)
    for name in _SPELLINGS:
        for key in _SPELLINGS[name]:
            value = model.get(key)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                return f"its {key} is no whole number above 0: {value!r}"
            sizes[name] = value
    sizes["inner"] = sizes["inner"] or 4 * sizes["hidden"]
    if sizes.get("decoder_layers") == 0:
        sizes["decoder_layers"] = sizes["layers"]
    return sizes


def _of_16_bits(model: Mapping[str, object]) -> bool:
    return (model.get("dtype") or model.get("torch_dtype")) in ("bfloat16", "float16")
