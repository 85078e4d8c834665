"""Browsers of the whole application, on the test's session."""

from tests.web_fixtures import admin, app, client_for, portal, stranger, trainer, viewer, whole_app

__all__ = ["admin", "app", "client_for", "portal", "stranger", "trainer", "viewer", "whole_app"]
