"""The TensorFlow backend."""
