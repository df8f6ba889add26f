"""`Settings`, the base class of all settings of a user, and the sections of a recipe."""
