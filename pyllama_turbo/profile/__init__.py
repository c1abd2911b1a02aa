"""Where the time of a step goes: kernels and operations by phase."""
