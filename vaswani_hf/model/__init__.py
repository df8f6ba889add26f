"""The models, the search and the translator. The files travel with checkpoints and need no other folder."""
