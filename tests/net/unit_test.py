#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The packaged systemd unit: what it lets the server do, and with which credentials. Usage:
unit_test.py PATH_OF_ADDEND
"""

from __future__ import annotations

import ctypes.util
import json
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from confine import USER, read_unit

ADDEND = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "addend"
HERE = Path(__file__).resolve().parent
UNIT = HERE.parents[1] / "packaging" / "addend-serve.service"
# Of the file's access list: owner, a user, the group, the most that users and groups get, others.
OWNER, NAMED_USER, GROUP, MASK, OTHERS = 1, 2, 4, 16, 32
ANYBODY = 0xFFFFFFFF


def why_not() -> str:
    if os.geteuid() != 0:
        return "becoming another user needs root"
    if shutil.which("systemd-analyze") is None:
        return "no systemd-analyze to ask for the system calls of a group"
    return "" if ctypes.util.find_library("seccomp") else "no libseccomp to make filters with"


class UnitTest(unittest.TestCase):
    def test_it_exposes_little(self) -> None:
        if shutil.which("systemd-analyze") is None:
            self.skipTest("no systemd-analyze to look at the unit with")
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--threshold=15", str(UNIT)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr)


@unittest.skipIf(why_not() != "", why_not())
class ConfinedTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.folder.chmod(0o755)
        self.state, self.credentials = self.folder / "state", self.folder / "credentials"
        self.state.mkdir(mode=0o700)
        self.credentials.mkdir(mode=0o755)
        self.addend = self.folder / "addend"  # where the unit's user can get at it
        shutil.copy(ADDEND, self.addend)
        self.key = self.credentials / "lab.key"
        subprocess.run([ADDEND, "keygen", self.key], check=True, capture_output=True)

    def hand_over_key(self) -> None:
        """As systemd does since version 254: root's, 0440, with an access list that names the
        service's user.
        """
        self.key.chmod(0o440)
        entries = (
            (OWNER, 4, ANYBODY),
            (NAMED_USER, 4, USER),
            (GROUP, 0, ANYBODY),
            (MASK, 4, ANYBODY),
            (OTHERS, 0, ANYBODY),
        )
        rows = b"".join(struct.pack("<HHI", *entry) for entry in entries)
        try:
            os.setxattr(self.key, "system.posix_acl_access", struct.pack("<I", 2) + rows)
        except OSError as problem:
            self.skipTest(f"no access lists on {self.folder}: {problem}")
        self.assertEqual(self.key.stat().st_mode & 0o777, 0o440)

    def command(self) -> list[str]:
        """The unit's own, with the places of this test."""
        config = self.folder / "serve.toml"
        config.write_text(
            '[server]\naddress = "127.0.0.1"\ncontrol_port = 0\ndata_port = 0\n[http]\nport = 0\n'
            f'[[tenant]]\nname = "lab"\nkey_file = "{self.key}"\n'
        )
        words = read_unit(UNIT)["ExecStart"][0].split()
        places = {
            "/usr/bin/addend": self.addend,
            "/etc/addend/serve.toml": config,
            "%S/addend": self.state,
        }
        return [str(places.get(word, word)) for word in words]

    def start(self) -> subprocess.Popen[str]:
        server = subprocess.Popen(
            [sys.executable, HERE / "confine.py", UNIT, self.state, *self.command()],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "CREDENTIALS_DIRECTORY": str(self.credentials)},
        )
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        return server

    def ports(self, server: subprocess.Popen[str]) -> list[str]:
        assert server.stdout is not None
        words = server.stdout.readline().split()
        if not words:
            self.fail(f"the server ended with {server.wait()}: {server.communicate()[1]}")
        return [words[1], words[3]]

    def ask(
        self, *words: object, control: str, key: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        if key is None:
            key = self.folder / "operator.key"
            shutil.copy(self.key, key)
            key.chmod(0o600)
        return subprocess.run(
            [
                str(word)
                for word in (
                    ADDEND,
                    *words,
                    "--aggregator",
                    f"127.0.0.1:{control}",
                    "--identity",
                    "lab",
                    "--key",
                    key,
                )
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def test_the_server_works_under_the_units_own_filters(self) -> None:
        self.hand_over_key()
        server = self.start()
        control, _ = self.ports(server)
        status = Path(f"/proc/{server.pid}/status").read_text()
        self.assertIn(f"Uid:\t{USER}\t", status)
        self.assertIn("CapBnd:\t0000000000000000", status)
        self.assertIn("Seccomp_filters:\t3", status)  # two of the unit's, one of the server's own
        done = self.ask(
            *shlex.split("perf --reducer service -b 64K -e 64K -n 2 --json"),
            control=control,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([row["wrong"] for row in json.loads(done.stdout)["results"]][:1], [0])
        # Its files are within its reach: it keeps a job, and reads its configuration again.
        self.assertEqual(
            self.ask("job", "create", "ring", "--workers", 2, control=control).returncode, 0
        )
        self.assertEqual((self.state / "jobs").stat().st_uid, USER)
        self.assertIn("-HUP", read_unit(UNIT)["ExecReload"][0])
        server.send_signal(signal.SIGHUP)
        assert server.stderr is not None
        log = line = ""
        while "reload" not in line:
            line = server.stderr.readline()
            self.assertTrue(line, f"the server ended: {log}")
            log += line
        self.assertIn("reloaded tenants=1", line)
        server.send_signal(signal.SIGTERM)
        log += server.communicate(timeout=60)[1]
        self.assertEqual(server.returncode, 0, log)
        given = int(Path("/proc/sys/net/core/rmem_max").read_text())
        small = (
            f"receive buffers are small asked_bytes={8 << 20} got_bytes={given} remedy=sysctl "
            f"net.core.rmem_max={8 << 20}"
        )
        self.assertEqual(small in log, given < 8 << 20, log)

    def test_a_reload_takes_new_keys(self) -> None:
        # Copies that systemd makes when the unit starts stay what they were, and files of a user
        # that is another one each time cannot be read.
        unit = read_unit(UNIT)
        self.assertNotIn("LoadCredential", unit)
        self.assertNotIn("DynamicUser", unit)
        self.key = self.folder / "lab.key"
        old, new = self.folder / "old.key", self.folder / "new.key"
        for key in (old, new):
            subprocess.run([ADDEND, "keygen", key], check=True, capture_output=True)

        def install(key: Path) -> None:
            shutil.copy(key, self.folder / "next")
            (self.folder / "next").chmod(0o600)
            os.chown(self.folder / "next", USER, USER)
            (self.folder / "next").rename(self.key)

        install(old)
        server = self.start()
        control, _ = self.ports(server)
        self.assertEqual(self.ask("job", "list", control=control, key=old).returncode, 0)
        install(new)
        server.send_signal(signal.SIGHUP)
        assert server.stderr is not None
        line = ""
        while "reload" not in line:
            line = server.stderr.readline()
            self.assertTrue(line, "the server ended")
        self.assertIn("reloaded tenants=1", line)
        self.assertEqual(self.ask("job", "list", control=control, key=new).returncode, 0)
        self.assertNotEqual(self.ask("job", "list", control=control, key=old).returncode, 0)

    def test_a_credential_that_others_may_read_is_refused(self) -> None:
        self.key.chmod(0o444)
        out, log = self.start().communicate(timeout=60)
        self.assertEqual(out, "")
        self.assertIn("others may read this key", log)


if __name__ == "__main__":
    unittest.main(verbosity=2)
