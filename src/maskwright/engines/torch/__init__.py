"""The engine on torch: CPU and CUDA."""
