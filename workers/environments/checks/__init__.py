"""The checks of an environment version, one small function each, all with the same face (`base.Check`)."""
