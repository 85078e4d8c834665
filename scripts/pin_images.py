"""Pin the base images to the digests that their tags have now: `python scripts/pin_images.py`. Needs a network.

Asks each image's registry for the digest of the tag and rewrites it in the Dockerfiles and in `docker-compose.yml`.
With `--check`, changes nothing and ends with 1 if a digest is outdated.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
FILES = ("Dockerfile.api", "Dockerfile.worker", "docker-compose.yml")
PINNED = re.compile(r"(?P<image>[a-z0-9./_-]+):(?P<tag>[A-Za-z0-9._-]+)@(?P<digest>sha256:[0-9a-f]{64})")
_REGISTRY, _TOKENS = "https://registry-1.docker.io", "https://auth.docker.io/token"
_TYPES = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"


def main(arguments: Sequence[str]) -> int:
    digests: dict[str, str] = {}
    outdated = 0
    with httpx.Client(timeout=30, follow_redirects=True) as client:
        for name in FILES:
            text = (ROOT / name).read_text()
            for match in PINNED.finditer(text):
                reference = f"{match['image']}:{match['tag']}"
                if reference not in digests:
                    digests[reference] = current_digest(client, match["image"], match["tag"])
                if digests[reference] != match["digest"]:
                    outdated += 1
                    sys.stdout.write(f"{name}: {reference} is now {digests[reference]}\n")
                    text = text.replace(match[0], f"{reference}@{digests[reference]}")
            if "--check" not in arguments:
                (ROOT / name).write_text(text)
    sys.stdout.write(f"{len(digests)} images, {outdated} outdated pins\n")
    return 1 if outdated and "--check" in arguments else 0


def current_digest(client: httpx.Client, image: str, tag: str) -> str:
    """Return the digest of the multi-platform index that the tag names on Docker Hub."""
    repository = image if "/" in image else f"library/{image}"
    scope = f"repository:{repository}:pull"
    token = client.get(_TOKENS, params={"service": "registry.docker.io", "scope": scope}).raise_for_status().json()
    headers = {"Authorization": f"Bearer {token['token']}", "Accept": _TYPES}
    answer = client.head(f"{_REGISTRY}/v2/{repository}/manifests/{tag}", headers=headers).raise_for_status()
    return str(answer.headers["docker-content-digest"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
