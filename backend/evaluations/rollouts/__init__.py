"""Rollouts of a run as lists: the filter language, order, columns, saved views."""
