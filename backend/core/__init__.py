"""Storage on Postgres: the session and one model file an aggregate."""
