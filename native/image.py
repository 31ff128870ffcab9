"""Build the container image, or perform the instructions of its Dockerfile in a folder.

    python -m native.image                 with docker or podman, if one of them works
    python -m native.image --in-a-folder   without: build/image is the root of the image

Without an engine a new virtual environment of this Python stands for the base image,
and each absolute path of the Dockerfile lies below the folder. The command names and
leaves out the instructions that need the root of a machine (packages of the
distribution, users, locales). It then starts the image's entry point, runs its health
check and sends a model one request. It ends by printing the size of the image.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from native.build_context import Instruction, copy_context, read_instructions

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("docker", "podman")
#: The paths of the Dockerfile that are moved below the folder.
_ABSOLUTE = re.compile(r"(?<![\w./-])/(?=(?:opt|src|wheels|models|var/cache)\b)")
#: Beginnings of commands that need the root of a machine.
_PRIVILEGED = ("apt-get", "localedef", "useradd", "rm -rf /var/lib/apt")
#: Seconds until the server of the image answers.
_START = 120.0


def usable_engine() -> str | None:
    """Return the name of a container engine that answers; None if there is none."""
    for name in ENGINES:
        if shutil.which(name):
            done = subprocess.run([name, "info"], capture_output=True, check=False)
            if done.returncode == 0:
                return name
    return None


class ImageFolder:
    """Performs the instructions of a Dockerfile below `folder`.

    Every stage is built in `folder/root`, so that absolute paths inside the files of a
    stage stay true when the next stage copies them. A finished stage moves to
    `folder/stages/NAME`.
    """

    def __init__(self, folder: Path, context: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.context = context
        self.entry_point: list[str] = []
        self.health_check: list[str] = []
        self.environment: dict[str, str] = {}
        self.left_out: list[str] = []
        self._stage = ""
        self._work = self.root

    def perform(self, instruction: Instruction) -> None:
        """Perform one instruction."""
        if instruction.name == "FROM":
            self._begin(instruction)
        elif instruction.name == "ENV":
            for word in shlex.split(instruction.rest):
                name, _, value = word.partition("=")
                value = value.replace("$PATH", self.environment["PATH"])
                self.environment[name] = self.below(value)
        elif instruction.name == "WORKDIR":
            self._work = Path(self.below(instruction.rest))
            self._work.mkdir(parents=True, exist_ok=True)
        elif instruction.name == "RUN":
            self._run(instruction.rest)
        elif instruction.name == "COPY":
            self._copy(instruction)
        elif instruction.name == "ENTRYPOINT":
            self.entry_point = re.findall(r'"([^"]+)"', instruction.rest)
        elif instruction.name == "HEALTHCHECK":
            words = re.findall(r'"([^"]+)"', instruction.rest)
            self.health_check = [self.below(word) for word in words]
        elif instruction.name not in (
            "LABEL",
            "USER",
            "VOLUME",
            "EXPOSE",
            "STOPSIGNAL",
            "ARG",
        ):
            sys.exit(f"native.image knows no instruction {instruction.name}")

    def below(self, text: str) -> str:
        """Return `text` with the paths of the image below the folder."""
        return _ABSOLUTE.sub(lambda _: f"{self.root}/", text)

    def size(self) -> int:
        """Return the bytes of all files of the last stage."""
        files = (path for path in self.root.rglob("*") if path.is_file())
        return sum(path.stat().st_size for path in files if not path.is_symlink())

    def _begin(self, instruction: Instruction) -> None:
        if self.root.exists():
            (self.folder / "stages").mkdir(exist_ok=True)
            self.root.rename(self.folder / "stages" / self._stage)
        self.root.mkdir(parents=True)
        self._stage = instruction.rest.rpartition(" AS ")[2]
        self._work = self.root
        # This replaces the base image with a new Python and pip.
        base = self.folder / "base"
        if not base.exists():
            subprocess.run([sys.executable, "-m", "venv", base], check=True)
        path = f"{base}/bin{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path}
        self.environment.pop("PYTHONPATH", None)

    def _run(self, commands: str) -> None:
        kept = []
        for command in re.split(r"\s*&&\s*", commands):
            if command.startswith(_PRIVILEGED):
                self.left_out.append(command)
            else:
                # All folders belong to the user that performs the instructions.
                kept.append(re.sub(r" -[og] \w+", "", command))
        if kept:
            command = self.below(" && ".join(kept))
            print(f"RUN {command}", flush=True)
            subprocess.run(
                command, shell=True, cwd=self._work, env=self.environment, check=True
            )

    def _copy(self, instruction: Instruction) -> None:
        *sources, target = instruction.places
        place = Path(self.below(target)) if target[0] == "/" else self._work / target
        for source in sources:
            if instruction.stage:
                found = self.folder / "stages" / instruction.stage / source.lstrip("/")
            else:
                found = self.context / source
            if instruction.stage and not _ABSOLUTE.match(source):
                self.left_out.append(f"COPY {instruction.rest}")
            elif found.is_dir():
                shutil.copytree(found, place, dirs_exist_ok=True, symlinks=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, place)


def try_it(image: ImageFolder) -> None:
    """Start the image's entry point with a model, and request one answer."""
    models = image.root / "models"
    shutil.copy2(ROOT / "examples" / "digits" / "digits.onnx", models / "digits.onnx")
    log = image.folder / "serve.log"
    variables = {"POPGATE_HOST": "127.0.0.1", "POPGATE_PORT": "0"}
    with log.open("w") as out:
        server = subprocess.Popen(
            image.entry_point,
            executable=shutil.which(
                image.entry_point[0], path=image.environment["PATH"]
            ),
            cwd=image.folder,
            env={**image.environment, **variables},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        url = _wait_for_url(server, log)
        variables["POPGATE_PORT"] = url.rpartition(":")[2]
        environment = {**image.environment, **variables}
        python = shutil.which("python", path=image.environment["PATH"])
        check = [str(python), *image.health_check[1:], str(server.pid)]
        subprocess.run(check, env=environment, check=True)
        print(f"the health check passes; an answer: {_ask(str(python), url)}")
    finally:
        server.send_signal(signal.SIGTERM)
        if server.wait(60) != 0:
            sys.exit(f"the server ended with {server.returncode}: see {log}")


def _wait_for_url(server: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + _START
    while time.monotonic() < end and server.poll() is None:
        found = re.search(r"listens on (http://[\w.:]+)", log.read_text())
        if found:
            return found[1]
        time.sleep(0.05)
    sys.exit(f"the server of the image does not start: see {log}\n{log.read_text()}")


def _ask(python: str, url: str) -> str:
    """Return the answer to one request, once the model is ready."""
    code = (
        "import math, sys, time, httpx\n"
        "with httpx.Client(base_url=sys.argv[1], trust_env=False, timeout=60) as c:\n"
        "    while c.get('/v1/health/ready').status_code != 200: time.sleep(0.1)\n"
        "    (image,) = c.get('/v1/models/digits').json()['inputs']\n"
        "    shape = [max(1, size) for size in image['shape']]\n"
        "    data = [0.0] * math.prod(shape)\n"
        "    image = {k: image[k] for k in ('name', 'datatype')}\n"
        "    data = {'inputs': [image | {'shape': shape, 'data': data}]}\n"
        "    said = c.post('/v1/models/digits/infer', json=data)\n"
        "    print(said.raise_for_status().json()['outputs'][0]['data'])\n"
    )
    command = [python, "-c", code, url]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_START
    )
    return done.stdout.strip() if done.returncode == 0 else sys.exit(done.stderr)


def build_in_a_folder(folder: Path) -> None:
    """Perform the Dockerfile's instructions in `folder`, and try the result."""
    shutil.rmtree(folder, ignore_errors=True)
    context = folder / "context"
    copy_context(ROOT, context)
    image = ImageFolder(folder, context)
    for instruction in read_instructions(ROOT / "Dockerfile"):
        image.perform(instruction)
    for command in image.left_out:
        print(f"left out, as it needs a container engine: {command}")
    try_it(image)
    print(f"{image.root}: {image.size() / 1e6:.0f} MB beyond the base image")


def build_with(engine: str, tag: str) -> None:
    """Build the image with an engine, and print its size."""
    subprocess.run([engine, "build", "-t", tag, str(ROOT)], check=True)
    command = [engine, "run", "--rm", "--entrypoint", "popgate", tag, "--version"]
    subprocess.run(command, check=True)
    command = [engine, "image", "inspect", "--format", "{{.Size}}", tag]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    print(f"{tag}: {int(done.stdout) / 1e6:.0f} MB")


def main(arguments: Mapping[str, object]) -> None:
    """Build with an engine if one works, in a folder otherwise."""
    engine = None if arguments["in_a_folder"] else usable_engine()
    if engine is not None:
        build_with(engine, str(arguments["tag"]))
        return
    print(
        "no container engine: the instructions of the Dockerfile are performed in a "
        "folder"
    )
    build_in_a_folder(ROOT / "build" / "image")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the container image.")
    parser.add_argument("--tag", default="popgate")
    parser.add_argument("--in-a-folder", action="store_true", help="use no engine")
    main(vars(parser.parse_args()))
