"""Small environments that noterl provides."""
