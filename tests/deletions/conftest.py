from tests.web_fixtures import *  # noqa: F403
