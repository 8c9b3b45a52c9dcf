"""maskwright from Python: `import maskwright` offers the names of `maskwright.__all__`, which these modules hold.

Most functions call the tasks that the commands call. `pretrain` and `finetune` start the command itself, in a process
of its own: so a notebook keeps its memory and its signals, and nothing that is called there can change a number of the
run. It uses the configurations and errors of the commands.
"""
