"""The settings of a run: the class of all settings, and the sections of a recipe."""
