"""What a run needs: `cost` projects time and memory, `measure` takes real steps here, `slices` compiles for TPUs, and
`show` combines them for `maskwright plan`."""
