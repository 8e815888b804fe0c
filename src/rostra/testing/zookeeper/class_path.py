"""Finds a Java and the jars of ZooKeeper: named by the user, from Debian's package, or through Maven."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from rostra.errors import ZookeeperMissing

CLASS_PATH_VARIABLE = "ROSTRA_ZOOKEEPER_CLASS_PATH"
DEBIAN_JARS = Path("/usr/share/java")
MAVEN_PATIENCE_S = 600.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>rostra</groupId><artifactId>zookeeper-server</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.zookeeper</groupId><artifactId>zookeeper</artifactId><version>3.8.4</version>
      <exclusions><exclusion><groupId>ch.qos.logback</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
    <dependency><groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.1.12.1</version>
    </dependency>
    <dependency><groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId><version>1.1.10.5</version>
    </dependency>
  </dependencies>
</project>
"""


def find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    java = shutil.which("java")
    if java is None:
        raise ZookeeperMissing("there is no Java to run it")
    return java


def find_class_path(named: str | None = None, *, debian_jars: Path = DEBIAN_JARS, cache: Path | None = None) -> str:
    """The class path of a server: `named` or the variable, else Debian's, else one that Maven puts together."""
    named = named or os.environ.get(CLASS_PATH_VARIABLE)
    if named:
        return named
    jars = [debian_jars / name for name in ("zookeeper.jar", "slf4j-simple.jar")]
    if all(jar.exists() for jar in jars):
        # The manifest of zookeeper.jar names the other jars.
        return os.pathsep.join(map(str, jars))
    maven = shutil.which("mvn")
    if maven is None:
        raise ZookeeperMissing("neither Debian's package nor mvn is installed")
    return _by_maven(maven, cache or _user_cache())


def _by_maven(maven: str, cache: Path) -> str:
    """Downloads the jars into Maven's own repository, once."""
    listed = cache / "class-path"
    if not listed.exists():
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "pom.xml").write_text(_POM)
        made = listed.with_suffix(".new")
        command = [maven, "--batch-mode", "-q", "dependency:build-classpath", f"-Dmdep.outputFile={made}"]
        done = subprocess.run(command, cwd=cache, capture_output=True, text=True, timeout=MAVEN_PATIENCE_S, check=False)
        if done.returncode != 0 or not made.exists():
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            raise ZookeeperMissing(f"mvn could not get it ({' '.join(last)})")
        made.replace(listed)
    return listed.read_text().strip()


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rostra" / "zookeeper"
