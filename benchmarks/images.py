"""The images of docker/Dockerfile, built and run without a network, and their compressed sizes.

Run as root where mmdebstrap, buildah and podman are installed (all in Debian 13):
    python benchmarks/images.py [CERTIFICATES.pem [STAGE...]]
Neither Docker Hub nor PyTorch's index is needed. A Debian made by mmdebstrap stands in for
debian:trixie-slim and for the nvidia/cuda image, and torch comes from PyPI. CERTIFICATES.pem:
those that pip has to trust in the images behind a proxy of your own.
Bar: slim adds at most 60 MB to its base, compressed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import measuring

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
# As in Docker's own images: no documentation, and an apt that keeps no archives.
LEFT_OUT = ("doc", "man", "locale", "info", "groff", "lintian")
CLEAN = 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };\n'
BUILD = ("--isolation=chroot", "--format=docker", "--pull=never", "--network=host")
LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")
STARTS = {
    "default": ([], (0, 1, 3)),
    "check": (["check"], (0, 1, 3)),
    "fix --print": (["fix", "--print"], (0, 1)),
    "explain driver-too-old": (["explain", "driver-too-old"], (0,)),
}


def ran(*argv: str | Path, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, check=False)
    if done.returncode not in codes:
        sys.exit(f"{argv[0]} ended with {done.returncode}: {' '.join(map(str, argv))}")
    return done.stdout.decode()


def base(folder: Path, certificates: Path | None) -> Path:
    """A Debian as small as debian:trixie-slim."""
    (folder / "docker-clean").write_text(CLEAN)
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
    copies = [f"--customize-hook=copy-in {folder}/docker-clean /etc/apt/apt.conf.d"]
    if certificates:
        (folder / "pip.conf").write_text("[global]\ncert = /etc/outer.pem\n")
        (folder / "outer.pem").write_bytes(certificates.read_bytes())
        copies.append(f"--customize-hook=copy-in {folder}/pip.conf {folder}/outer.pem /etc")
    made = folder / "base.tar"
    ran("mmdebstrap", "--variant=minbase", *excluded, *copies, "trixie", made)
    return made


def layers(folder: Path, image: str) -> list[float]:
    """The compressed size of each layer in MB, the base first."""
    archive = folder / "image.tar"
    ran("buildah", "push", "--quiet", image, f"oci-archive:{archive}")
    with tarfile.open(archive) as tar:

        def blob(name: str) -> Any:
            file = tar.extractfile(name)
            return json.load(file) if file else None

        digest = blob("index.json")["manifests"][0]["digest"]
        manifest = blob(f"blobs/{digest.replace(':', '/')}")
    archive.unlink()
    return [round(layer["size"] / 1e6, 1) for layer in manifest["layers"]]


def started(image: str) -> dict[str, int]:
    """The exit code of each start, without a network and as the image's own user."""
    podman = ["podman", "run", "--rm", "--network=none", "--cgroups=disabled", "--ulimit=host"]
    found = {}
    for name, (words, codes) in STARTS.items():
        done = subprocess.run([*podman, image, *words], stdout=subprocess.PIPE, check=False)
        if done.returncode not in codes or not done.stdout:
            sys.exit(f"{image} {name}: {done.returncode}")
        found[name] = done.returncode
    own = ran(*podman, "--entrypoint=sh", image, "-c", 'id -u; test -w "$HOME" && echo writable')
    assert own.split() == ["10001", "writable"], own
    return found


def main(certificates: Path | None, stages: list[str]) -> None:
    results = measuring.RESULTS / "images.json"
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    found = {stage: found[stage] for stage in ("slim", "torch") if stage in found}
    found["bars"] = {"slim_mb": 60}
    images = re.findall(r"(?m)^FROM ((?:debian|nvidia)\S*) AS", DOCKERFILE)
    defaults = dict(re.findall(r"(?m)^ARG (\w+)=(\S+)$", DOCKERFILE))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = base(folder, certificates)
        for image in images:
            tag = re.sub(r"\$\{(\w+)\}", lambda arg: defaults[arg[1]], image)
            ran(
                "podman",
                "import",
                "--quiet",
                archive,
                f"docker.io/{tag}".replace("/debian", "/library/debian"),
            )
        for stage in stages:
            index = "--build-arg=INDEX=https://pypi.org/simple"
            target = (f"--target={stage}", f"--tag=cudadoctor:{stage}")
            ran(
                "buildah",
                "build",
                *BUILD,
                *LIMITS,
                index,
                *target,
                "-f",
                ROOT / "docker/Dockerfile",
                ROOT,
            )
            found[stage] = {"exit_codes": started(f"cudadoctor:{stage}")}
            if stage == "slim":  # torch's would take minutes to compress
                sizes = layers(folder, "cudadoctor:slim")
                found["slim"] |= {"base_mb": sizes[0], "added_mb": round(sum(sizes[1:]), 1)}
    measuring.saved("images", found)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, sys.argv[2:] or ["slim", "torch"])
