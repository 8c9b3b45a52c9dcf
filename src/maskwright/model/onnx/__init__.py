"""The networks as ONNX graphs."""
