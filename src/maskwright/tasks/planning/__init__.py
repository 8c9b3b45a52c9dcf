"""What a run takes: `cost` projects time and memory, `measure` takes real steps here, `slices` compiles for TPUs, and
`show` puts them together for `maskwright plan`."""
