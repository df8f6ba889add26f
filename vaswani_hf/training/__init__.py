"""Training: from a recipe to a scored checkpoint."""
