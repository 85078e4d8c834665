"""The pure vocabulary of Proctor: no I/O, no framework. Read this package first."""
