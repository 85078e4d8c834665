"""What follows from verdicts: fixtures, corrected curves, the best checkpoint. Routes apart, free of the web."""
