"""Plumbing that the features share: who asks, pages and blocks, forms, live streams, errors, audit, paging."""
