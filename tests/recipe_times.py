"""The table of docs/recipes.md: what each recipe is for, and its time on a laptop and on one GPU, projected.
`python tests/recipe_times.py` prints it, with tests/ on the path."""

from maskwright.config.pretraining import read_config
from maskwright.core.console import human_bytes, human_count
from maskwright.machine.devices import place
from maskwright.tasks.planning.cost import pretraining_work
from maskwright.tasks.planning.show import projected
from maskwright.tasks.pretrain.model import model_without_store

PLACES = ("laptop", "t4", "h100")
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
"""The shapes of RoBERTa-base, ModernBERT-base and ESM-2 of 8M, which these recipes continue."""
RECIPES = {
    "nano": ("RoBERTa", "a first try", "4.34"),
    "dna": ("ModernBERT", "a first look at [DNA](proteins.md#dna)", "31 % of k-mers"),
    "proteins": ("ESM-2", "a first look at [proteins](proteins.md)", "19.9 % of letters, as a nano"),
    "small": ("RoBERTa", "10 to 100 million tokens, if only RoBERTa will do", "-"),
    "modern": ("ModernBERT", "10 to 100 million tokens", "4.46 to 4.50, as a mini"),
    "overnight": ("ModernBERT", "a night on two CPU cores with fast bf16", "-"),
    "long": ("ModernBERT", "long documents", "-"),
    "continue": ("RoBERTa, BERT, XLM-R", "your text on top of a public model", "5.10 from 7.79, 300 steps"),
    "continue-modernbert": ("ModernBERT", "your text on top of a public model", "-"),
    "continue-esm2": ("ESM-2", "your proteins on top of a public model", "-"),
    "roberta-base": ("RoBERTa", "the published setting of 2019", "-"),
    "roberta-large": ("RoBERTa", "the setting of a TPU pod's script", "-"),
}
"""Each one's architecture, what it is for, and the held-out loss, or the share of masked tokens, that was measured."""
VOCABULARY = {"dna": 4_101, "proteins": 33, "overnight": 32_768, "continue-modernbert": 50_368, "continue-esm2": 33}
USUAL_VOCABULARY = 50_265


def table() -> str:
    """In Markdown, without the bands. Rows count as full, and each as one document."""
    heads = ["recipe", "for", "model", "steps x rows x tokens", "reached", *PLACES, "GPU memory"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, (architecture, purpose, reached) in RECIPES.items():
        shape = ("model.init_from=null", *CONTINUED[name]) if name in CONTINUED else ()
        config = read_config(name, ["data.store=none", *shape])
        model = model_without_store(config, VOCABULARY.get(name, USUAL_VOCABULARY))
        work = pretraining_work(config, model)
        found = {on: projected(work, place(on)) for on in PLACES}
        times = [one.seconds.time().partition(" (")[0] for one in found.values()]
        run = f"{config.steps:,} x {config.rows_per_step:,} x {config.data.seq_len:,}"
        layers = f"{model.num_hidden_layers} x {model.hidden_size:,}"
        shown = f"{architecture}, {layers}, {human_count(work.parameters)}"
        link = f"[`{name}`](../recipes/{name}.yaml)"
        cells = [link, purpose, shown, run, reached, *times, human_bytes(found["h100"].needed)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
