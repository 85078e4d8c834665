"""Infrastructure: database sessions, the job queue, events, artifacts, secrets, logs, embedded servers."""
