#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What operators are given: probes, the dashboard, the image and the manifest, each held against a
running server. Usage: operating_test.py PATH_OF_ADDEND
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

try:
    import yaml  # type: ignore[import-untyped]
except ImportError:
    yaml = None

ADDEND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "addend"
ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def manifests() -> dict[str, Any]:
    return {
        one["kind"]: one for one in yaml.safe_load_all((PACKAGING / "kubernetes.yaml").read_text())
    }


class OperatingTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.key = self.folder / "lab.key"
        subprocess.run([ADDEND, "keygen", self.key], check=True, capture_output=True)

    def serve(
        self, config: str, *extra: object, env: dict[str, str] | None = None
    ) -> tuple[subprocess.Popen[str], int]:
        """A server on free ports; its process and the port of its pages."""
        file = self.folder / "serve.toml"
        file.write_text(
            config.replace("[server]", "[server]\ncontrol_port = 0\ndata_port = 0", 1).replace(
                "[http]", "[http]\nport = 0", 1
            )
        )
        process = subprocess.Popen(
            [ADDEND, "serve", "--config", file, *map(str, extra)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        self.assertEqual(words[:1], ["control"], "the server did not start")
        self.control = int(words[1])
        return process, int(words[3])

    def config(self, server: str = "") -> str:
        return f'[server]\n{server}\n[http]\n[[tenant]]\nname = "lab"\nkey_file = "{self.key}"\n'

    def test_a_server_is_healthy_and_ready_until_it_drains(self) -> None:
        process, port = self.serve(self.config("drain_s = 30"))
        self.assertEqual(get(port, "/healthz"), (200, "ok\n"))
        self.assertEqual(get(port, "/readyz"), (200, "ok\n"))
        worker = subprocess.Popen(
            [
                ADDEND,
                "perf",
                "--reducer",
                "service",
                "--aggregator",
                f"127.0.0.1:{self.control}",
                "--identity",
                "lab",
                "--key",
                self.key,
                "--workers",
                "1",
                "--worker",
                "0",
                "-b",
                "64K",
                "-e",
                "64K",
                "-n",
                "1000000",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        while not json.loads(get(port, "/status.json")[1])["jobs"]:
            self.assertIsNone(worker.poll())
        process.send_signal(signal.SIGTERM)
        while get(port, "/readyz")[0] == 200:
            self.assertIsNone(process.poll())
        self.assertEqual(get(port, "/readyz"), (503, "draining\n"))
        self.assertEqual(get(port, "/healthz"), (200, "ok\n"))

    def test_the_dashboard_asks_for_what_there_is(self) -> None:
        board = json.loads((PACKAGING / "grafana-dashboard.json").read_text())
        asked = set()
        for panel in board["panels"]:
            self.assertTrue(panel["targets"], panel["title"])
            for target in panel["targets"]:
                asked |= set(re.findall(r"\baddend_\w+", target["expr"]))
        for variable in board["templating"]["list"]:
            asked |= set(re.findall(r"\baddend_\w+", json.dumps(variable)))
        _, port = self.serve(self.config())
        known = set(re.findall(r"^# TYPE (\w+)", get(port, "/metrics")[1], re.M))
        self.assertGreater(len(asked), 12)
        self.assertEqual(asked - known, set())
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
        self.assertEqual(len(places), len(set(places)))

    def test_the_image_builds_what_the_makefile_builds_and_runs_without_privileges(self) -> None:
        text = (PACKAGING / "Containerfile").read_text().replace("\\\n", " ")
        lines = [
            line.split(None, 1)
            for line in text.splitlines()
            if line.strip() and not line.startswith("#")
        ]
        last = dict(lines)
        self.assertEqual(
            [rest.split()[0] for word, rest in lines if word == "FROM"], ["debian:12-slim"] * 2
        )
        self.assertRegex(last["USER"], r"^[1-9]\d*:[1-9]\d*$")
        self.assertEqual(json.loads(last["ENTRYPOINT"]), ["/usr/bin/addend", "serve"])
        wanted = re.search(
            r"\[build\]=\"([^\"]+)\"", (ROOT / "tools" / "install_packages.sh").read_text()
        )
        assert wanted is not None
        build = next(rest for word, rest in lines if word == "RUN").split()
        self.assertEqual(
            set(wanted.group(1).split()) - set(build), {"libopenmpi-dev", "openmpi-bin"}
        )
        # Every library that the program is linked with comes from a package of the second stage.
        needed = set(
            re.findall(
                r"(lib\w+)(?:-\w+)?\.so",
                subprocess.run(["ldd", ADDEND], capture_output=True, text=True, check=True).stdout,
            )
        )
        packages = [rest for word, rest in lines if word == "RUN"][-1]
        for library in needed & {
            "libhwy",
            "libfmt",
            "libxxhash",
            "libssl",
            "libcrypto",
            "libtomlplusplus",
            "libbpf",
        }:
            self.assertIn("libssl" if library == "libcrypto" else library, packages)

    @unittest.skipIf(yaml is None, "no python3-yaml to read the manifest with")
    def test_the_manifest_is_of_one_piece(self) -> None:
        kinds = manifests()
        self.assertEqual(set(kinds), {"ConfigMap", "Service", "StatefulSet"})
        pod = kinds["StatefulSet"]["spec"]["template"]
        container = pod["spec"]["containers"][0]
        self.assertEqual(kinds["Service"]["spec"]["selector"], pod["metadata"]["labels"])
        self.assertEqual(
            {
                (one["name"], one["port"], one["protocol"])
                for one in kinds["Service"]["spec"]["ports"]
            },
            {(one["name"], one["containerPort"], one["protocol"]) for one in container["ports"]},
        )
        volumes = {one["name"] for one in pod["spec"]["volumes"]}
        volumes |= {
            one["metadata"]["name"] for one in kinds["StatefulSet"]["spec"]["volumeClaimTemplates"]
        }
        self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)
        self.assertTrue(pod["spec"]["securityContext"]["runAsNonRoot"])
        self.assertEqual(container["securityContext"]["capabilities"], {"drop": ["ALL"]})
        threads = re.findall(r"threads = (\d+)", kinds["ConfigMap"]["data"]["serve.toml"])
        data_ports = sum(port["protocol"] == "UDP" for port in container["ports"])
        self.assertEqual(threads, [str(data_ports)])

    @unittest.skipIf(yaml is None, "no python3-yaml to read the manifest with")
    def test_a_server_starts_with_the_manifests_configuration_and_answers_its_probes(self) -> None:
        kinds = manifests()
        container = kinds["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
        # As Kubernetes mounts a secret with a group: a link to a file that the group may read.
        keys = self.folder / "keys"
        (keys / "..data").mkdir(parents=True)
        os.replace(self.key, keys / "..data" / "lab.key")
        (keys / "..data" / "lab.key").chmod(0o440)
        (keys / "lab.key").symlink_to("..data/lab.key")
        place = {
            "/etc/addend/keys": str(keys),
            "/var/lib/addend": str(self.folder / "state"),
            "/etc/addend/serve.toml": "",
        }
        (self.folder / "state").mkdir(mode=0o700)

        def here(text: str) -> str:
            for path, local in place.items():
                text = text.replace(path, local)
            return text

        arguments = [here(word) for word in container["args"][2:]]
        self.assertEqual(container["args"][:2], ["--config", "/etc/addend/serve.toml"])
        env = {one["name"]: here(one["value"]) for one in container["env"]}
        _, port = self.serve(here(kinds["ConfigMap"]["data"]["serve.toml"]), *arguments, env=env)
        for probe in ("livenessProbe", "readinessProbe"):
            self.assertEqual(container[probe]["httpGet"]["port"], "pages")
            self.assertEqual(get(port, container[probe]["httpGet"]["path"])[0], 200)


if __name__ == "__main__":
    unittest.main(verbosity=2)
