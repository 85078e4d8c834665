"""The web layer that all slices share: identity, roles, pages, forms, live streams, errors, audit, paging."""
