"""The model and all that travels with a checkpoint: flat siblings that import only torch, transformers and each other."""
