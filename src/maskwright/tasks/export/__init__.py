"""Models as Hugging Face folders and ONNX files, verified before they get their names."""
