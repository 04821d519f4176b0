#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`addend serve`, `job` and `keygen` as users run them, and the server's pages. Usage:
service_test.py PATH_OF_ADDEND
"""

from __future__ import annotations

import json
import os
import pwd
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

from network import wait_until, why_not

ADDEND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "addend"


def addend(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ADDEND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )


class ServiceTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.key = self.folder / "lab.key"
        self.assertEqual(addend("keygen", self.key).returncode, 0)

    def serve(
        self,
        extra: str = "",
        server: str = "",
        tenant: str = "",
        files: tuple[int, int] | None = None,
    ) -> None:
        """`files`: the soft and the hard limit of descriptors."""
        config = self.folder / "serve.toml"
        config.write_text(
            '[server]\naddress = "127.0.0.1"\ncontrol_port = 0\ndata_port = 0\ndrain_s = 0.2\n'
            + server
            + "\n"
            f'[http]\nport = 0\n{extra}\n[[tenant]]\nname = "lab"\nkey_file = "{self.key}"\n'
            f"{tenant}\n"
        )
        self.server = subprocess.Popen(
            [ADDEND, "serve", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files)),
        )
        self.addCleanup(self.stop)
        assert self.server.stdout is not None
        words = self.server.stdout.readline().split()
        self.assertEqual(words[0], "control", words)
        self.control, self.http = words[1], words[3]

    def stop(self) -> str:
        if self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
        return self.server.communicate(timeout=30)[1]

    def access(self) -> list[object]:
        return ["--aggregator", f"127.0.0.1:{self.control}", "--identity", "lab", "--key", self.key]

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=10) as page:
            return str(page.read(), "utf-8")

    def test_jobs_come_and_go_and_a_signal_drains(self) -> None:
        self.serve()
        self.assertEqual(
            addend("job", "create", "ring", "--workers", 4, *self.access()).returncode, 0
        )
        again = addend("job", "create", "ring", "--workers", 4, *self.access())
        self.assertEqual(again.returncode, 1)
        self.assertIn("there is a job named ring", again.stderr)
        listed = json.loads(addend("job", "list", "--json", *self.access()).stdout)
        self.assertEqual(
            [(job["job"], job["world"], job["joined"]) for job in listed], [("ring", 4, 0)]
        )
        self.assertIn('addend_job_workers{tenant="lab",job="ring"} 4', self.get("/metrics"))
        self.assertEqual(addend("job", "drain", "ring", *self.access()).returncode, 0)
        self.assertEqual(json.loads(self.get("/status.json"))["jobs"], [])
        log = self.stop()
        self.assertEqual(self.server.returncode, 0, log)
        for event in ("server started", "job created", "job draining", "job removed", "drained"):
            self.assertIn(event, log)
        self.assertNotIn(self.key.read_text().strip(), log)

    def test_it_takes_as_many_descriptors_as_it_may_have(self) -> None:
        self.serve(files=(64, 512))
        limits = resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE)
        self.assertEqual(limits, (512, 512))
        self.assertRegex(self.stop(), r"descriptor limit raised.*64.*512")

    def test_perf_runs_over_it(self) -> None:
        self.serve()
        done = addend(
            "perf",
            "--reducer",
            "service",
            *self.access(),
            *shlex.split("-b 256K -e 256K -n 2 --json -c dense -c exact -c quant:carrier=indices"),
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(all(row["wrong"] == 0 for row in json.loads(done.stdout)["results"]))

    def goes_on_without_the_server(self, *words: object, fallback: str) -> None:
        """Kills the server in the middle of a run and does not start it again: every sum must still
        be right.
        """
        self.serve()
        command = [
            *words,
            ADDEND,
            *shlex.split(f"perf --reducer service --fallback {fallback} --return 0.5"),
            *self.access(),
            *shlex.split(
                "-b 1M -e 1M -n 60 -c dense -c exact:values=reproducible --values integers --json"
            ),
        ]
        workers = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(workers.kill)
        wait_until(
            lambda: (
                sum(job["turns"] for job in json.loads(self.get("/status.json"))["jobs"]) > 2000
            ),
            "turns at the server",
        )
        self.server.kill()
        out, err = workers.communicate(timeout=240)
        self.assertEqual(workers.returncode, 0, out + err)
        for number in range(4):
            self.assertIn(f"worker {number} goes on without the server", err)
        rows = json.loads(out)["results"]
        self.assertEqual([row["wrong"] for row in rows], [0, 0])

    def test_threads_go_on_without_the_server(self) -> None:
        self.goes_on_without_the_server(fallback="local")

    def test_processes_go_on_without_the_server(self) -> None:
        if (
            shutil.which("mpirun") is None
            or "not in this build; 'addend perf --reducer mpi'" in addend("doctor").stdout
        ):
            self.skipTest("no MPI")
        # Open MPI refuses to run as root, or with more ranks than cores, unless told; MPICH ignores
        # these.
        self.goes_on_without_the_server(
            *shlex.split(
                "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                "OMPI_MCA_rmaps_base_oversubscribe=1 "
                "OMPI_MCA_btl_vader_single_copy_mechanism=none mpirun -n 4"
            ),
            fallback="mpi",
        )

    def test_a_tenant_without_floats_gets_its_sums_as_integers(self) -> None:
        self.serve(tenant="floats = false")
        for dtype in ("f32", "bf16"):
            done = addend(
                "perf",
                "--reducer",
                "service",
                *self.access(),
                *shlex.split(
                    f"-b 256K -e 256K -n 2 --json --dtype {dtype} -c dense -c exact -c "
                    "exact:values=reproducible -c quant"
                ),
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual([row["wrong"] for row in json.loads(done.stdout)["results"]], [0] * 4)
        refused = addend("job", "create", "ring", "--workers", 4, *self.access())
        self.assertIn("may not sum floats", refused.stderr)
        self.assertEqual(
            addend(
                "job", "create", "ring", "--workers", 4, "--no-floats", *self.access()
            ).returncode,
            0,
        )

    def test_logs_can_be_json(self) -> None:
        self.serve(extra='[log]\njson = true\nlevel = "info"')
        lines = [json.loads(line) for line in self.stop().splitlines()]
        self.assertEqual(lines[0]["event"], "server started")
        self.assertEqual(lines[0]["control"], self.control)

    @unittest.skipIf(os.geteuid() != 0, "becoming another user needs root")
    def test_it_gives_up_what_it_does_not_need(self) -> None:
        self.folder.chmod(0o755)
        self.serve(server='user = "nobody"')
        addend("job", "create", "ring", "--workers", 1, *self.access())
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{self.server.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        nobody = str(pwd.getpwnam("nobody").pw_uid)
        self.assertEqual(status["Uid"].split(), [nobody] * 4)
        self.assertEqual(status["Groups"].strip(), "")
        self.assertEqual(int(status["CapEff"], 16), 0)
        self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))
        for task in Path(f"/proc/{self.server.pid}/task").iterdir():
            self.assertIn("Seccomp:\t2", (task / "status").read_text())
        done = addend(
            "perf", "--reducer", "service", *self.access(), "-b", "64K", "-e", "64K", "-n", 2
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('job="ring"', self.get("/metrics"))
        # It may no longer read its key, but can still have it read again.
        self.server.send_signal(signal.SIGHUP)
        assert self.server.stderr is not None
        while "reload" not in (line := self.server.stderr.readline()):
            pass
        self.assertIn("reloaded", line)

    def test_certificates_open_the_door_instead_of_keys(self) -> None:
        def openssl(*arguments: object) -> None:
            subprocess.run(
                ["openssl", *map(str, arguments)], cwd=self.folder, check=True, capture_output=True
            )

        openssl(
            *shlex.split(
                "req -x509 -newkey ed25519 -nodes -keyout ca.key -out ca.pem -subj /CN=authority "
                "-days 2"
            ),
        )

        def certify(name: str, usage: str) -> None:
            (self.folder / "usage").write_text(usage)
            openssl(
                *shlex.split(
                    f"req -newkey ed25519 -nodes -keyout {name}.key.pem -out request -subj "
                    f"/CN={name}"
                ),
            )
            openssl(
                *shlex.split(
                    "x509 -req -in request -CA ca.pem -CAkey ca.key -days 2 -extfile usage -out "
                    f"{name}.pem"
                ),
            )

        certify("server", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth")
        certify("lab", "extendedKeyUsage=clientAuth")
        certify("stranger", "extendedKeyUsage=clientAuth")
        self.serve(
            extra=(
                f'[tls]\nauthority = "{self.folder}/ca.pem"\n'
                f'certificate = "{self.folder}/server.pem"\n'
                f'key = "{self.folder}/server.key.pem"'
            )
        )

        def create(name: str, aggregator: str, job: str) -> subprocess.CompletedProcess[str]:
            return addend(
                *shlex.split(
                    f"job create {job} --workers 1 --aggregator {aggregator}:{self.control} "
                    "--authority"
                ),
                self.folder / "ca.pem",
                "--certificate",
                self.folder / f"{name}.pem",
                "--certificate-key",
                self.folder / f"{name}.key.pem",
            )

        good = create("lab", "127.0.0.1", "a")
        self.assertEqual(good.returncode, 0, good.stderr)
        # A certificate of the authority for nobody we know, and a server that is not the one that
        # was asked for.
        self.assertIn(
            "'stranger' is no tenant of this server", create("stranger", "127.0.0.1", "b").stderr
        )
        self.assertEqual(create("lab", "localhost", "c").returncode, 1)
        # A certificate that was renewed, here for that name, is there after a reload.
        certify("server", "subjectAltName=DNS:localhost\nextendedKeyUsage=serverAuth")
        self.server.send_signal(signal.SIGHUP)
        assert self.server.stderr is not None
        while "reloaded" not in (line := self.server.stderr.readline()):
            self.assertNotIn("reload refused", line)
        self.assertEqual(create("lab", "localhost", "c").returncode, 0)
        # Keys still work beside them.
        self.assertEqual(len(json.loads(addend("job", "list", "--json", *self.access()).stdout)), 2)

    @unittest.skipIf(why_not() is not None, "no namespaces here")
    def test_a_host_without_ipv6_serves_and_joins(self) -> None:
        space = f"addend{os.getpid()}v4"
        inside = ["ip", "netns", "exec", space]
        subprocess.run(["ip", "netns", "add", space], check=True)
        self.addCleanup(subprocess.run, ["ip", "netns", "del", space], check=True)
        subprocess.run([*inside, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"], check=True)
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        self.server = subprocess.Popen(
            [*inside, ADDEND, "serve", "--key", str(self.key), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.stop)
        assert self.server.stdout is not None
        control = self.server.stdout.readline().split()[1]
        for host in ("127.0.0.1", "localhost"):
            done = subprocess.run(
                [
                    *inside,
                    ADDEND,
                    *shlex.split(
                        f"perf --reducer service --aggregator {host}:{control} --key {self.key} "
                        "-b 64K -e 64K -n 1"
                    ),
                ],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_commands_of_the_page_do_what_it_says(self) -> None:
        page = Path(__file__).resolve().parents[2] / "docs" / "service.md"
        block = page.read_text().split("## Jobs", 1)[1].split("```")[1]
        commands = [
            line.split("#")[0].split()[1:]
            for line in block.splitlines()
            if line.startswith("addend ")
        ]
        self.assertEqual(
            [words[1] for words in commands if words[0] == "job"],
            ["create", "create", "list", "drain"],
        )
        self.server = subprocess.Popen(
            [ADDEND, "serve", "--key", str(self.key), "--port", "0", "--address", "127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.stop)
        assert self.server.stdout is not None
        control = self.server.stdout.readline().split()[1]
        for words in commands:
            where = ["--aggregator", f"127.0.0.1:{control}"] if words[0] == "job" else []
            done = subprocess.run(
                [str(Path(ADDEND).resolve()), *words, *where],
                cwd=self.folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")

    def test_mistakes_in_the_configuration_are_named(self) -> None:
        for text, words in (
            ("[server]\nthreds = 2\n", "no key 'threds'"),
            ("[srver]\n", "no table [srver]"),
            ("[server]\nthreads = 'two'\n", "'threads' wants a whole number"),
            ("[server\n", "serve.toml:1"),
            ("", "without tenants"),
            ("server = 3\n", "'server' wants to be a table: write [server]"),
            ("[tenant]\nname = 'a'\n", "write [[tenant]]"),
            ("tenant = 3\n", "write [[tenant]]"),
            ("tenant = [3]\n", "write [[tenant]]"),
            ("[[server]]\n", "write [server]"),
            ("[server]\nmax_connections = 0\n", "'max_connections' wants a whole number from 1"),
            ("[server]\nthreads = 2.0\n", "'threads' wants a whole number"),
            ("[server]\nthreads = true\n", "'threads' wants a whole number"),
            (
                "[server]\ncontrol_port = 65536\n",
                "'control_port' wants a whole number from 0 to 65535",
            ),
            (
                "[server]\ncontrol_port = -1\n",
                "'control_port' wants a whole number from 0 to 65535",
            ),
            ("[server]\ndrain_s = 'long'\n", "'drain_s' wants seconds"),
            ("[server]\ndrain_s = inf\n", "'drain_s' wants seconds"),
            ("[server]\naddress = 1\n", "'address' wants text"),
            ("[http]\nenabled = 1\n", "'enabled' wants true or false"),
            ("[server]\nseccomp = 'no'\n", "'seccomp' wants true or false"),
            (
                "[server]\ndata_port = 65535\nthreads = 2\n[[tenant]]\nname = 'a'\n",
                "ports up to 65536",
            ),
            ("[log]\nlevel = 'chatty'\n", "'level' wants one of debug, info, warning, error"),
            ("[log]\nlevel = 3\n", "'level' wants text"),
            ("[tls]\nauthority = 'x'\n", "certificate and key"),
            ("[[tenant]]\nname = 3\n", "'name' wants text"),
            ("[[tenant]]\nmax_jobs = 0\n", "'max_jobs' wants a whole number from 1"),
            ("[[tenant]]\nname = 'a b'\n", "no name for a tenant"),
            ("[[tenant]]\nname = 'a'\n", "has no key"),
        ):
            config = self.folder / "serve.toml"
            config.write_text(text)
            done = addend("serve", "--config", config)
            self.assertEqual(done.returncode, 1, text)
            self.assertIn(words, done.stderr)

    def test_a_key_that_others_may_read_is_refused(self) -> None:
        self.key.chmod(0o644)
        done = addend("serve", "--key", self.key)
        self.assertEqual(done.returncode, 1)
        self.assertIn("others may read this key", done.stderr)
        self.assertIn("File exists", addend("keygen", self.key).stderr)

    @unittest.skipIf(shutil.which("chromium") is None, "no chromium to look at the page with")
    def test_the_page_shows_jobs_in_a_browser(self) -> None:
        self.serve()
        addend("job", "create", "ring", "--workers", 4, *self.access())
        done = subprocess.run(
            [
                *shlex.split(
                    "chromium --headless --no-sandbox --disable-gpu --virtual-time-budget=4000 "
                    f"--dump-dom --user-data-dir={self.folder}/browser "
                    f"http://127.0.0.1:{self.http}/"
                ),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        self.assertIn("<td>lab/ring (waiting)</td><td>0/4</td><td>512</td>", done.stdout)
        self.assertIn("1 data threads", done.stdout)
        self.assertRegex(done.stdout, r'<polyline class="in" id="in" points="0,')


if __name__ == "__main__":
    unittest.main(verbosity=2)
