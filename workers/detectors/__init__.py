"""Scanning runs with the detectors of `backend.domain.detectors`."""
