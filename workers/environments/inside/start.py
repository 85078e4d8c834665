"""The first step of a warm interpreter, outside: make the outer ring, then restart inside it.

Standard library and our own code only: nothing of an environment is imported, found or run by this process.
"""

import json
import os
import sys
import sysconfig
from collections.abc import Sequence

from proctor_sandbox import linux
from workers.environments.inside import jail


def main(arguments: Sequence[str]) -> None:
    """`arguments`: a module in this folder, a JSON object for the ring, and the module's own arguments."""
    module, text, *rest = arguments
    options = json.loads(text)
    linux.die_with_parent()
    more = compiler() if options.get("compiler") else {}
    jail.enclose_interpreter(
        options["new_root"],
        options["site_packages"],
        options["uid"],
        has_network=options.get("network", False),
        more=more,
    )
    jail.continue_inside(module, rest)


def compiler() -> dict[str, str]:
    """Folders of the host with a compiler and headers, by their place inside."""
    headers = sysconfig.get_path("include", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix})
    wanted = {jail.PROGRAMS_FOLDER: "/usr/bin", "/usr/include": "/usr/include", headers: headers}
    return {place: os.path.realpath(path) for place, path in wanted.items() if os.path.isdir(path)}
