from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from highwater.kube import rack

NODES = {
    "zoned": {"metadata": {"labels": {rack.ZONE: "eu-1a", "other": "x"}}},
    "bare": {"metadata": {}},
}


class _Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        node = NODES.get(self.path.removeprefix("/api/v1/nodes/"))
        allowed = self.headers["Authorization"] == "Bearer secret"
        self.send_response(403 if not allowed else 404 if node is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(node).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    api = HTTPServer(("127.0.0.1", 0), _Api)
    thread = Thread(target=api.serve_forever)
    thread.start()
    (tmp_path / "token").write_text("secret")
    monkeypatch.setattr(rack, "SERVER", f"http://127.0.0.1:{api.server_port}")
    monkeypatch.setattr(rack, "ACCOUNT", tmp_path)
    monkeypatch.setattr(rack.ssl, "create_default_context", lambda cafile: None)
    yield
    api.shutdown()
    thread.join()
    api.server_close()


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("node", "line"), [("zoned", "rack=eu-1a\n"), ("bare", "rack=\n")])
def test_the_zone_of_the_node_becomes_a_setting(node: str, line: str, tmp_path: Path) -> None:
    assert rack.main(["--node", node, "--out", str(tmp_path / "rack.properties")]) == 0
    assert (tmp_path / "rack.properties").read_text() == line


@pytest.mark.usefixtures("server")
def test_a_node_that_cannot_be_read_ends_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rack.main(["--node", "gone", "--out", str(tmp_path / "out")]) == 1
    assert "node gone cannot be read: 404" in capsys.readouterr().err
    (tmp_path / "token").unlink()
    assert rack.main(["--node", "zoned", "--out", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()
