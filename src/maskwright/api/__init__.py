"""maskwright from Python: `import maskwright` offers the names of `maskwright.__all__`, which these modules hold.

Most functions call the tasks that the commands call. `pretrain` and `finetune` start the command itself, in a process
of its own, so that a notebook keeps its memory and its signals, and cannot change a number of the run. This package
uses the configurations and errors of the commands.
"""
