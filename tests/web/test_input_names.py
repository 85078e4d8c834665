"""Inputs of forms must not hide what scripts read of the form itself: `form.form` would be the input of that name."""

import re

from backend.settings import PROJECT_ROOT

HIDING = re.compile(r'name="(form|submit|elements|method|action|target|reset|matches|closest|dispatchEvent)"')


def test_no_input_is_named_like_a_property_of_its_form():
    templates = (PROJECT_ROOT / "frontend" / "templates").rglob("*.html")
    assert {str(path): found for path in templates if (found := HIDING.findall(path.read_text()))} == {}
