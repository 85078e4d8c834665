"""`proctor up`: every process of Proctor on one machine, started, watched and ended together."""
