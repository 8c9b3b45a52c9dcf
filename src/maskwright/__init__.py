"""maskwright: raw text in, proven RoBERTa-class encoder out.

Importing this package loads no heavy library; each command imports what it needs when it runs.
"""

__version__ = "0.1.0"
