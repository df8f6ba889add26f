"""Defines `Settings`, the base class of all settings of users, and the sections of a recipe."""
