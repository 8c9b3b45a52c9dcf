"""A process with limits that tries a pattern on texts. It exits with 0 if the library finishes each of them."""

from __future__ import annotations

import json
import resource
import sys

CPU_SECONDS, MEMORY_BYTES = 10, 4 << 30

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from tokenizers import Regex, pre_tokenizers

    pattern, texts = json.load(sys.stdin)
    try:
        splitter = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception:  # no pattern: the tokenizer's own loading says so
        sys.exit(0)
    for text in texts:
        splitter.pre_tokenize_str(text)
