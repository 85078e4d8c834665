"""For the comparison with other tools: an instant endpoint, equal environments, the other tools' programs."""
