"""A store's manifest in words."""

from __future__ import annotations

from typing import Any

from maskwright.core.console import several
from maskwright.data.manifest import sources_in
from maskwright.text.cleaning.language import merge_languages
from maskwright.text.cleaning.steps import C4_LINES

LEFT_OUT = {
    "duplicates": "duplicates",
    "too_short": "too short",
    "too_long": "too long",
    "empty": "empty",
    "without_text": "records without text",
    "special_tokens": "special tokens left out",
    "unknown_tokens": "unknown tokens",
}
"""Names of the counts of dropped documents, and of changed ids in converted stores."""
CHANGES = {
    "email": ("masked", "email address", "email addresses"),
    "ip": ("masked", "IP address", "IP addresses"),
    "phone": ("masked", "phone number", "phone numbers"),
    C4_LINES: ("left out", "line by C4's rules", "lines by C4's rules"),
}
"""(verb, singular, plural) of changes to kept documents."""


def came_from(manifest: dict[str, Any]) -> str:
    """A line about the files of a store's text, for users who did not just prepare it."""
    count, first = sources_in(manifest)
    more = f" and {count - len(first):,} more" if count > len(first) else ""
    return f"text: {several(count, 'file')}, {', '.join(first)}{more}"


def report(location: str, manifest: dict[str, Any]) -> str:
    """Describes a store for a person."""
    counts, words = manifest["counts"], manifest["tokenizer"]
    lines = [
        f"{location}: format {manifest['format']}, {manifest['dtype']}, fingerprint {manifest['fingerprint'][:16]}",
        f"tokenizer: {words['vocab_size']:,} tokens, fingerprint {words['fingerprint'][:16]}",
        f"documents: {counts['read']:,} read, {counts['kept']:,} kept, "
        + ", ".join(f"{counts[name]:,} {title}" for name, title in LEFT_OUT.items() if name in counts),
    ]
    for name, count in merge_languages(counts.get("left_out", {})).items():
        lines.append(f"cleaning left out {several(count, 'document')} ({name})")
    for name, count in counts.get("changed", {}).items():
        verb, noun, plural = CHANGES[name]
        lines.append(f"cleaning {verb} {several(count, noun, plural)}")
    if (passes := manifest.get("passes", 1)) > 1:
        lines.append(f"it holds its text {passes} times, so an epoch of a run is 1/{passes} of it")
    for name, split in manifest["splits"].items():
        sentences = f", {split['sentences']:,} sentences" if split["sentences"] else ""
        lines.append(f"{name}: {several(split['documents'], 'document')}, {split['tokens']:,} tokens{sentences}")
    shards = manifest["shards"]
    size = sum(file["bytes"] for shard in shards for file in shard["files"].values())
    lines.append(f"shards: {len(shards)}, {size:,} bytes")
    return "\n".join(lines)
