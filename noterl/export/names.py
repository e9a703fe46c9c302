"""The names of the formats; this module imports no backend."""

FORMAT_NAMES = ("keras", "saved_model", "onnx", "torch", "numpy")
