"""`maskwright plan`: what a run will take here, by a probe, and elsewhere, by a model that measurements calibrate."""
