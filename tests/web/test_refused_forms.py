"""Without script, a refused form comes back as it was typed, with what is wrong beside its fields."""

from html import unescape

import pytest
from fastapi.testclient import TestClient
from selectolax.parser import HTMLParser
