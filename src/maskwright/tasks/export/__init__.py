"""Models as Hugging Face folders and ONNX files, proven before they are there."""
