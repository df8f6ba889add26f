"""Defines `Settings`, the base class of all settings that a user gives, and the sections of a recipe."""
