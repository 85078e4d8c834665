"""What is known of every detector without running it: its words, needs, thresholds and how they are set."""
