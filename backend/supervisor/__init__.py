"""`proctor up`: starts, watches and stops every process of Proctor on one machine."""
