"""Questions in plain words, reasoning monitors and contrasts: definitions, where they were asked, what was answered."""
