"""A program for the runtime's Python: fetch the source distributions of requirements without a matching wheel.

python fetch_source.py FOLDER REQUIREMENT… prints a JSON list of the fetched distributions. It uses pip's own finder, so
that index, proxy and credentials are those of `pip install`, and downloads only: pip's `download` would run the
package's metadata hooks, which is foreign code.
"""

import hashlib
import json
import sys
from pathlib import Path

from pip._internal.commands import create_command
from pip._vendor.packaging.requirements import Requirement

MAX_BYTES = 64 << 20


def main(folder: str, *requirements: str) -> None:
    command = create_command("download")
    options, _ = command.parse_args(["--no-input", "--disable-pip-version-check", "--prefer-binary", *requirements])
    fetched = []
    with command.main_context():
        session = command.get_default_session(options)  # type: ignore[attr-defined]
        finder = command._build_package_finder(options, session)  # type: ignore[attr-defined]
        for line in dict.fromkeys(requirements):
            requirement = Requirement(line)
            best = finder.find_best_candidate(requirement.name, requirement.specifier).best_candidate
            if best is None or best.link.is_wheel:  # nothing matches at all, or a wheel will do
                continue
            link, path = best.link, Path(folder, best.link.filename)
            if "/" in link.filename:
                sys.exit(f"{link.filename[:100]!r} is not a file name")
            digest = hashlib.new(link.hash_name or "sha256")
            with path.open("wb") as file:
                response = session.get(link.url_without_fragment, stream=True, headers={"Accept-Encoding": "identity"})
                response.raise_for_status()
                for part in response.iter_content(1 << 20):
                    digest.update(part)
                    file.write(part)
                    if file.tell() > MAX_BYTES:
                        sys.exit(f"{link.filename} is larger than {MAX_BYTES >> 20} MB")
            if link.hash and digest.hexdigest() != link.hash:
                sys.exit(f"{link.filename} is not the file that the index lists: its {link.hash_name} differs")
            fetched.append({"name": best.name, "version": str(best.version), "path": str(path)})
    sys.stdout.write(json.dumps(fetched))


if __name__ == "__main__":
    main(*sys.argv[1:])
