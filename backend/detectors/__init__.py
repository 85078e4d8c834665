"""How well each detector does by people's verdicts, and how it is set."""
