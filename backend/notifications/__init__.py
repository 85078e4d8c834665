"""Notices: written beside what they tell of, shown to everybody signed in, sent to webhooks and by e-mail."""
