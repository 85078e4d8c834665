"""Notices: stored with the change they report, shown to every member, sent to webhooks and by email."""
