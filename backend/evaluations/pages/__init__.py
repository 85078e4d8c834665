"""The routes by page; `backend.evaluations.routes` mounts them."""
