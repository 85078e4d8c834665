"""The product: rules, storage and web. Never imports workers, torch or trl."""
