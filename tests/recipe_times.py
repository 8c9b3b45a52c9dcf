"""The table of docs/planning.md: what each recipe takes on a laptop, on one GPU and on a slice, projected.
`python tests/recipe_times.py` prints it, with tests/ on the path."""

from __future__ import annotations

from maskwright.config.pretraining import read_config
from maskwright.core.console import human_bytes, human_count
from maskwright.machine.devices import place
from maskwright.tasks.planning.cost import pretraining_work
from maskwright.tasks.planning.show import projected
from maskwright.tasks.pretrain.model import model_without_store

PLACES = ("laptop", "t4", "h100", "h100:8", "v5e:2x4")
MODERNBERT = ("architecture=modernbert", "num_hidden_layers=22", "intermediate_size=1152", "local_attention=128")
ESM2 = ("architecture=esm", "num_hidden_layers=6", "hidden_size=320", "num_attention_heads=20")
CONTINUED = {
    "continue": ("model.size=base",),
    "continue-modernbert": (
        "model.size=base",
        "model.global_attn_every_n_layers=3",
        *(f"model.{key}" for key in MODERNBERT),
    ),
    "continue-esm2": tuple(f"model.{key}" for key in ESM2),
}
"""The shapes of RoBERTa-base, ModernBERT-base and ESM-2 of 8M, which these recipes go on with."""
RECIPES = (
    "nano",
    "dna",
    "proteins",
    "small",
    "modern",
    "overnight",
    "long",
    "continue",
    "continue-modernbert",
    "continue-esm2",
    "roberta-base",
    "roberta-large",
)
VOCABULARY = {"dna": 4_101, "proteins": 33, "overnight": 32_768, "continue-modernbert": 50_368, "continue-esm2": 33}
USUAL_VOCABULARY = 50_265


def table() -> str:
    """In Markdown. Rows count as full, and each as one document."""
    heads = ["recipe", "model", "steps x rows x tokens", "tokens read", *PLACES, "memory on one GPU"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in RECIPES:
        shape = ("model.init_from=null", *CONTINUED[name]) if name in CONTINUED else ()
        config = read_config(name, ["data.store=none", *shape])
        model = model_without_store(config, VOCABULARY.get(name, USUAL_VOCABULARY))
        work = pretraining_work(config, model)
        found = {on: projected(work, place(on)) for on in PLACES}
        times = [one.seconds.time() for one in found.values()]
        run = f"{config.steps:,} x {config.rows_per_step:,} x {config.data.seq_len:,}"
        tokens = human_count(work.tokens * work.steps)
        shown = f"{model.num_hidden_layers} x {model.hidden_size:,}, {human_count(work.parameters)}"
        cells = [f"`{name}`", shown, run, tokens, *times, human_bytes(found["h100"].needed)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
